//! The pages of metrics before other people's parsers, the alerts before promtool, and the dashboards before Prometheus.

use crate::cargo::{self, Profile, Scope, cargo, program};
use crate::wheels;
use anyhow::{Context, Result};
use fabricbios_testbed::{Layout, Outcome};
use std::path::PathBuf;

/// The package of the parsers, in a fixed version.
const PARSERS: &str = "prometheus_client==0.26.0";

/// The tests that bring nodes and schedulers into trouble.
const TESTS: &str = "(package(fabricbios-node) & binary(operating) | package(fabricbios-scheduler) & binary(with_etcd)) & test(/^alerts::/)";

/// What Prometheus scrapes: a node and a scheduler, with a client that gives them work.
const WATCHED: [&str; 7] = [
    "--bins",
    "-p",
    "fabricbios-node",
    "-p",
    "fabricbios-cli",
    "-p",
    "fabricbios-scheduler",
];

/// Tests leave their scrapes in the directory that this variable names.
pub(crate) const SCRAPES: &str = "SCRAPES";

/// The step of `cargo xtask test`. A host that cannot fetch the programs skips it. `are_there`: all tests have left their
/// scrapes in this run.
pub(crate) fn step(layout: &Layout, scope: Scope, are_there: bool) -> Result<Outcome> {
    let place = layout.tools().join("metrics");
    if let Err(why) = wheels::install(layout, &place, &[PARSERS]) {
        return Ok(Outcome::Skipped(format!("cannot fetch {PARSERS}: {why:#}")));
    }
    let python = place.join("bin/python").display().to_string();
    cargo::run(program(layout, &python, &["testbed/metrics/check.py"]))?;
    let [promtool, prometheus] = match prometheus(layout) {
        Ok(programs) => programs,
        Err(why) => return Ok(Outcome::Skipped(format!("no Prometheus: {why:#}"))),
    };
    for of in ["node/src/monitor", "fleet/scheduler/src/watch"] {
        let page = layout.repository().join(of).join("golden/metrics.txt");
        let mut check = program(layout, &promtool, &["check", "metrics"]);
        check.stdin(std::fs::File::open(page)?);
        cargo::run(check)?;
    }
    for words in [
        ["check", "rules", "docs/metrics/alerts.yaml"],
        ["test", "rules", "docs/metrics/alerts_test.yaml"],
    ] {
        cargo::run(program(layout, &promtool, &words))?;
    }
    if !are_there {
        provoke(layout, scope)?;
    }
    let scrapes = scrapes(layout).display().to_string();
    let words = ["testbed/metrics/provoked.py", &promtool, &scrapes];
    cargo::run(program(layout, &python, &words))?;
    scope.build(layout, &WATCHED)?;
    let programs = Profile::Debug.programs(layout).display().to_string();
    let words = ["testbed/metrics/dashboards.py", &prometheus, &programs];
    cargo::run(program(layout, &python, &words))?;
    Ok(Outcome::Passed)
}

fn scrapes(layout: &Layout) -> PathBuf {
    layout.target().join("scrapes")
}

/// The directory for scrapes, without those of an earlier run.
pub(crate) fn empty_scrapes(layout: &Layout) -> Result<PathBuf> {
    let scrapes = scrapes(layout);
    std::fs::remove_dir_all(&scrapes).ok();
    std::fs::create_dir_all(&scrapes)?;
    Ok(scrapes)
}

/// Has tests bring running nodes and schedulers into trouble, and leave scrapes of them.
fn provoke(layout: &Layout, scope: Scope) -> Result<()> {
    let packages: &[&str] = match scope {
        Scope::Needed => &[
            "-p",
            "fabricbios-node",
            "-p",
            "fabricbios-scheduler",
            "--test",
            "operating",
            "--test",
            "with_etcd",
        ],
        Scope::Workspace => &["--workspace"],
    };
    let words = ["nextest", "run", "-E", TESTS];
    let mut provoke = cargo(layout, &[&words[..], packages].concat())?;
    provoke.env(SCRAPES, empty_scrapes(layout)?);
    cargo::run(provoke)
}

/// Debian's promtool and its server, taken out of their package: installed, the package would start the server.
fn prometheus(layout: &Layout) -> Result<[String; 2]> {
    let place = layout.tools().join("promtool");
    let programs = ["promtool", "prometheus"].map(|it| place.join("usr/bin").join(it));
    if !programs.iter().all(|it| it.exists()) {
        std::fs::create_dir_all(&place)?;
        let mut download = program(layout, "apt-get", &["download", "--quiet", "prometheus"]);
        download.current_dir(&place);
        cargo::run(download)?;
        let packages = std::fs::read_dir(&place)?.filter_map(|it| Some(it.ok()?.path()));
        let mut packages = packages.filter(|it| it.extension().is_some_and(|end| end == "deb"));
        let package = packages.next().context("apt-get left no package")?;
        let (package, place) = (package.display().to_string(), place.display().to_string());
        cargo::run(program(
            layout,
            "dpkg-deb",
            &["--extract", &package, &place],
        ))?;
        std::fs::remove_file(package)?;
    }
    Ok(programs.map(|it| it.display().to_string()))
}
