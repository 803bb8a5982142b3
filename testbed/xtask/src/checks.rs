//! The checks of `cargo xtask test` that run on the host.

use crate::affected::Affected;
use crate::cargo::{self, cargo, program};
use crate::files;
use crate::metrics::{self, SCRAPES};
use crate::packages::OTHER_WORKSPACES;
use crate::wheels;
use anyhow::Result;
use fabricbios_testbed::{Layout, Outcome};
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;

/// The version of ruff, fixed so that new lints do not fail old commits.
const RUFF: &str = "ruff==0.17.6";

fn passed(command: Command) -> Result<Outcome> {
    cargo::run(command).map(|()| Outcome::Passed)
}

pub(crate) fn fetch(layout: &Layout) -> Result<Outcome> {
    cargo::run(cargo(layout, &["fetch", "--locked"])?)?;
    for manifest in OTHER_WORKSPACES {
        let words = ["fetch", "--locked", "--manifest-path", manifest];
        cargo::run(cargo(layout, &words)?)?;
    }
    Ok(Outcome::Passed)
}

pub(crate) fn fmt(layout: &Layout) -> Result<Outcome> {
    cargo::run(cargo(layout, &["fmt", "--all", "--check"])?)?;
    for manifest in OTHER_WORKSPACES {
        let words = ["fmt", "--manifest-path", manifest, "--check"];
        cargo::run(cargo(layout, &words)?)?;
    }
    Ok(Outcome::Passed)
}

pub(crate) fn clippy(layout: &Layout) -> Result<Outcome> {
    let words = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    cargo::run(cargo(layout, &words)?)?;
    // Without the features that others of the workspace switch on.
    let alone = ["clippy", "-p", "fabricbios-client", "--", "-D", "warnings"];
    cargo::run(cargo(layout, &alone)?)?;
    // Where they are built too, so that macros and build scripts are compiled once.
    let deny_warnings = ["--", "-D", "warnings"];
    cargo::run(crate::fuzz::cargo_for(layout, "clippy", &deny_warnings)?)?;
    cargo::run(cargo_no_std(layout, "clippy", &deny_warnings)?)?;
    Ok(Outcome::Passed)
}

pub(crate) fn deny(layout: &Layout) -> Result<Outcome> {
    let checks = ["bans", "licenses", "sources"];
    cargo::run(cargo(layout, &[&["deny", "check"], &checks[..]].concat())?)?;
    for manifest in OTHER_WORKSPACES {
        let words = [
            "deny",
            "--manifest-path",
            manifest,
            "--config",
            "deny.toml",
            "check",
        ];
        // These workspaces need fewer crates than the main one, so an exception may match nothing.
        let unmatched = ["-A", "license-not-encountered", "-A", "unmatched-skip"];
        cargo::run(cargo(layout, &[&words[..], &unmatched, &checks].concat())?)?;
    }
    Ok(Outcome::Passed)
}

/// The database of advisories is a separate repository; a host that cannot reach it skips this step.
pub(crate) fn advisories(layout: &Layout) -> Result<Outcome> {
    let fetched = cargo(layout, &["deny", "fetch", "db"])?.output()?;
    if !fetched.status.success() {
        return Ok(Outcome::Skipped(
            "cannot fetch the advisory database".to_owned(),
        ));
    }
    passed(cargo(
        layout,
        &["deny", "check", "--disable-fetch", "advisories"],
    )?)
}

/// Runs the tests of the affected packages, or of all.
pub(crate) fn nextest(layout: &Layout, affected: Option<&Affected>) -> Result<Outcome> {
    // The tests wait for two thirds of their time, for deadlines and for processes.
    let threads = 3 * std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.to_string();
    let words = ["nextest", "run", "--workspace", "--test-threads", &threads];
    let mut command = cargo(layout, &words)?;
    command.env(SCRAPES, metrics::empty_scrapes(layout)?);
    for package in affected.iter().flat_map(|it| &it.packages) {
        command.arg("-E").arg(format!("package({package})"));
    }
    passed(command)
}

pub(crate) fn doctest(layout: &Layout) -> Result<Outcome> {
    passed(cargo(layout, &["test", "--quiet", "--workspace", "--doc"])?)
}

pub(crate) fn doc(layout: &Layout) -> Result<Outcome> {
    let mut command = cargo(layout, &["doc", "--workspace", "--no-deps"])?;
    command.env("RUSTDOCFLAGS", "-D warnings");
    // As `cargo clippy` calls the compiler: what that step has checked is not checked again.
    let sysroot = cargo::output(program(layout, "rustc", &["--print", "sysroot"]))?;
    let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env(
        "CLIPPY_ARGS",
        "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
    );
    passed(command)
}

pub(crate) fn no_std(layout: &Layout) -> Result<Outcome> {
    passed(cargo_no_std(layout, "build", &[])?)
}

/// Cargo's `subcommand` for testbed/no-std.
fn cargo_no_std(layout: &Layout, subcommand: &str, words: &[&str]) -> Result<Command> {
    let mut command = cargo(layout, &[&[subcommand, "--locked"], words].concat())?;
    command
        .current_dir(layout.repository().join("testbed/no-std"))
        .env("CARGO_TARGET_DIR", layout.target().join("no-std"));
    Ok(command)
}

pub(crate) fn python(layout: &Layout) -> Result<Outcome> {
    let words = [
        "testbed/names.py",
        "testbed",
        "testbed/blktests",
        "testbed/fstests",
        "testbed/lab/boot",
        "testbed/guest",
        "testbed/metrics",
        "testbed/vectors",
        "testbed/versions",
        "examples",
        "client/python/python/fabricbios",
    ];
    passed(program(layout, "python3", &words))
}

/// Lints the Python programs. ruff is no Debian package; a host that cannot fetch it skips this step.
pub(crate) fn ruff(layout: &Layout) -> Result<Outcome> {
    let place = layout.tools().join("python");
    if wheels::install(layout, &place, &[RUFF]).is_err() {
        return Ok(Outcome::Skipped(format!("cannot fetch {RUFF}")));
    }
    let ruff = place.join("bin/ruff").display().to_string();
    passed(program(layout, &ruff, &["check", "--quiet"]))
}

/// Lints the programs whose first line names a shell.
pub(crate) fn shell(layout: &Layout) -> Result<Outcome> {
    let mut programs = Vec::new();
    for folder in [".ci", "examples", "testbed"] {
        programs.extend(files::below(&layout.repository().join(folder))?);
    }
    programs.retain(|path| {
        let text = fs::read(path).unwrap_or_default();
        let first = text.split(|it| *it == b'\n').next().unwrap_or_default();
        first.starts_with(b"#!") && first.ends_with(b"sh")
    });
    let mut command = program(layout, "shellcheck", &[]);
    command.args(programs);
    passed(command)
}

pub(crate) fn vectors(layout: &Layout) -> Result<Outcome> {
    passed(program(layout, "python3", &["testbed/vectors/check.py"]))
}
