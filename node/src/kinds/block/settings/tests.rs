use crate::kinds::settings::tests::Examples;

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--block-pool", "/pool"],
    values: &[
        ("block-pool", &["/a"], &[""], "value"),
        (
            "nvmet",
            &["tcp:10.0.0.1:4420"],
            &["0", "tcp:10.0.0.1:0", "udp:10.0.0.1:1", ""],
            "tcp:10.0.0.1:4420",
        ),
        (
            "nvme-host",
            &["nqn.2014-08.org.example:host1=blue"],
            &["0", "blue", ""],
            "nqn.2014-08.org.example:host1=blue",
        ),
        (
            "fbbu-listen",
            &["none", "[::]:5703"],
            &["0", "[::]", "off", ""],
            "192.0.2.10:5702",
        ),
        (
            "fbbu-half-sent-max",
            &["524288", "512KiB", "1024TiB"],
            &["0", "524287", "1025TiB", "much"],
            "64MiB",
        ),
        (
            "block-per-tenant-max",
            &["0", "1TiB"],
            &["18446744073709551616", "much"],
            "1TiB",
        ),
    ],
    idle: &[
        "nvmet",
        "nvme-host",
        "fbbu-half-sent-max",
        "block-per-tenant-max",
    ],
    contradictions: &[
        (
            &["--block-pool", "/a", "--block-pool", "/a"],
            "--block-pool names the same path twice",
        ),
        (
            &["--block-pool", "/a", "--without-pool", "/a"],
            "--without-pool /a with --block-pool",
        ),
    ],
};
