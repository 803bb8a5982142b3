//! The benches of a run, and how much each does in a quick one.

use crate::suites::GUEST_DIRECTORY;
use anyhow::Result;
use fabricbios_testbed::Layout;
use fabricbios_testbed::suite::{self, Suite};

/// A bench of `fabricbios-bench`.
pub(super) struct Bench {
    pub(super) name: &'static str,
    /// Arguments in full length.
    pub(super) full: &'static [&'static str],
    /// Arguments of a quick run: fewer operations in a round, and at least 15 pairs where there is a goal.
    pub(super) quick: &'static [&'static str],
}

/// The Python package, whose wheel a quick run does not build.
pub(super) const PYTHON: &str = "python";

/// Sessions of a GPU, on stand-ins of the vendors' libraries.
pub(super) const GPU: &str = "gpu";

/// The benches that need no guest.
pub(super) const HOST: [Bench; 18] = [
    Bench::new("fdatasync", &[], &["--rounds", "150"]),
    Bench::new("grant", &[], &["--rounds", "150"]),
    Bench::new("churn", &[], &["--leases", "25"]),
    Bench::new("rss", &[], &["--leases", "100000"]),
    Bench::new("programs", &[], &["--starts", "15"]),
    Bench::new(
        "fbmu",
        &[],
        &["--rounds", "20", "--reads", "10000", "--bulk-mib", "32"],
    ),
    Bench::new("fbbu-nbd", &[], &["--rounds", "15", "--operations", "2000"]),
    Bench::new("lease-table", &[], &["--rounds", "15"]),
    Bench::new("decision", &[], &["--rounds", "15"]),
    Bench::new(
        "footprint",
        &["--rounds", "0"],
        &["--rounds", "0", "--leases", "10000"],
    ),
    Bench::new("page", &[], &["--times", "10"]),
    Bench::new(
        "scrape",
        &[],
        &["--leases", "10000", "--scrapes", "10", "--grants", "1000"],
    ),
    Bench::new("fleet", &[], &["--rounds", "15", "--leases", "10"]),
    Bench::new(
        "fleet-page",
        &["--leases", "0"],
        &[
            "--leases", "0", "--nodes", "1000", "--away", "10", "--times", "10",
        ],
    ),
    Bench::new(PYTHON, &[], &[]),
    Bench::new(GPU, &[], &["--rounds", "20"]),
    Bench::new("strategy", &[], &[]),
    Bench::new("ends", &[], &[]),
];

/// Figures of other commands.
pub(super) const ELSEWHERE: [(&str, &str); 2] = [
    (
        "gpu-test",
        "`cargo xtask gpu-test --stand-ins` prints its other figures",
    ),
    (
        "fleet-sim",
        "`cargo xtask fleet-sim --release --nodes 10000 --leases 1000000 --schedulers 1 --clients 0 --secs 0 --figures` prints them",
    ),
];

impl Bench {
    const fn new(
        name: &'static str,
        full: &'static [&'static str],
        quick: &'static [&'static str],
    ) -> Self {
        Self { name, full, quick }
    }
}

/// The benches of the lab.
pub(super) fn of_lab(layout: &Layout) -> Result<Vec<Suite>> {
    suite::discover(&layout.repository().join(GUEST_DIRECTORY), "bench_")
}

/// The names of all benches.
pub(super) fn names(layout: &Layout) -> Result<Vec<String>> {
    let host = HOST.iter().map(|it| it.name.to_owned());
    let lab = of_lab(layout)?.into_iter().map(|it| it.name);
    Ok(host.chain(lab).collect())
}
