//! `cargo xtask toolchain`: checks that need another toolchain or target, which rustup installs.

use crate::cargo::{cargo, run};
use anyhow::{Context, Result};
use clap::ValueEnum;
use fabricbios_testbed::Layout;
use std::process::{Command, ExitCode};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    check: Check,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Check {
    /// The oldest Rust that the manifest names builds everything
    Msrv,
    /// Lints for aarch64; needs Debian's gcc-aarch64-linux-gnu
    Aarch64,
    /// No undefined behaviour in the tests of the lease table, the wire format and the UDP engine; takes long
    Miri,
}

/// The architecture that the specification names.
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Installs what rustup has for the check, and runs it.
pub(crate) fn run_check(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let command = match arguments.check {
        Check::Msrv => {
            let version = env!("CARGO_PKG_RUST_VERSION");
            rustup(&["toolchain", "install", version, "--profile", "minimal"])?;
            cargo_of(
                layout,
                version,
                &["check", "--locked", "--workspace", "--all-targets"],
            )?
        }
        Check::Aarch64 => {
            rustup(&["target", "add", TARGET])?;
            let words = [
                "clippy",
                "--workspace",
                "--target",
                TARGET,
                "--",
                "-D",
                "warnings",
            ];
            cargo(layout, &words)?
        }
        Check::Miri => {
            let components = ["--profile", "minimal", "--component", "miri,rust-src"];
            rustup(&[&["toolchain", "install", "nightly"], &components[..]].concat())?;
            let packages =
                ["lease", "wire", "fallback-udp"].map(|it| format!("--package=fabricbios-{it}"));
            let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
            // The server opens files with O_DIRECT, which Miri does not know.
            let skipped = ["--", "--skip=server::"];
            let mut command = cargo_of(
                layout,
                "nightly",
                &[&["miri", "test", "--lib"], &packages[..], &skipped].concat(),
            )?;
            // Tests read golden files. Each property is tried only a few times, since Miri is a hundred times slower.
            command
                .env("MIRIFLAGS", "-Zmiri-disable-isolation")
                .env("PROPTEST_CASES", "2");
            command
        }
    };
    run(in_own_target(layout, command)).map(|()| ExitCode::SUCCESS)
}

/// Keeps the artifacts of the other toolchain apart: cargo would replace its own with them.
fn in_own_target(layout: &Layout, mut command: Command) -> Command {
    command.env("CARGO_TARGET_DIR", layout.target().join("toolchain"));
    command
}

/// `cargo` of another toolchain. rustup's own `cargo` chooses it by the first word.
fn cargo_of(layout: &Layout, toolchain: &str, words: &[&str]) -> Result<Command> {
    let mut command = cargo(layout, words)?;
    command.env("RUSTUP_TOOLCHAIN", toolchain);
    Ok(command)
}

fn rustup(words: &[&str]) -> Result<()> {
    let mut command = Command::new("rustup");
    command.args(words);
    run(command).context("this check needs rustup and its downloads")
}
