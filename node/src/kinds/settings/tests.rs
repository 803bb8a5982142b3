//! What the tests of all settings need to know of each.

/// Values of settings, and settings that contradict each other.
#[derive(Debug)]
pub(crate) struct Examples {
    /// A setting without which others of these have no effect.
    pub(crate) base: [&'static str; 2],
    /// For each setting: its name, accepted values, refused values, and an example that the refusal names.
    pub(crate) values: &'static [Values],
    /// Settings that have no effect without the base.
    pub(crate) idle: &'static [&'static str],
    /// Flags that contradict each other, and words of the refusal.
    pub(crate) contradictions: &'static [(&'static [&'static str], &'static str)],
}

pub(crate) type Values = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--local-socket", "/run/local.sock"],
    values: &[
        ("profile", &["linux"], &["0", "windows", ""], "bare-metal"),
        ("state-dir", &["/var/lib/x"], &[""], "value"),
        (
            "listen",
            &["0.0.0.0:5701", "[::]:0"],
            &["0", "0.0.0.0", "host:5701", "1.2.3.4:65536", ""],
            "0.0.0.0:5701",
        ),
        (
            "fbmu-ops-max",
            &["1", "4294967295"],
            &["0", "4294967296", "-1", "many", "1.5"],
            "1000000",
        ),
        ("cdi-dir", &["/run/cdi"], &[""], "value"),
        ("local-socket", &["/run/a.sock"], &[""], "value"),
        (
            "tenant-uid",
            &["blue=0", "blue=1000"],
            &["0", "blue=4294967295", "blue=anna", ""],
            "blue=1000",
        ),
    ],
    idle: &["tenant-uid"],
    contradictions: &[
        (&["--cdi-dir", "/run/cdi"], "--cdi-dir without --gpus"),
        (
            &["--fbmu-ops-max", "9"],
            "--fbmu-ops-max without --mem-bytes",
        ),
    ],
};
