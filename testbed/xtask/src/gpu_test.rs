//! `cargo xtask gpu-test`: leases of the GPUs of this machine, or of stand-ins.

use crate::cargo::{self, Scope, cargo, program};
use crate::lab::{BootArguments, say};
use crate::stand_ins;
use anyhow::Result;
use clap::Args;
use fabricbios_testbed::requirements::{self, Need};
use fabricbios_testbed::{Layout, Outcome};
use std::process::{Command, ExitCode};

/// The arguments of `cargo xtask gpu-test`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// On stand-ins of the vendors' libraries: no GPU is needed
    #[arg(long)]
    stand_ins: bool,
    /// Build the program and print its path: it runs alone on another machine
    #[arg(long, conflicts_with = "stand_ins")]
    build: bool,
    #[command(flatten)]
    boot: BootArguments,
    /// Arguments of the program, see its --help
    #[arg(last = true)]
    more: Vec<String>,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    requirements::ensure(layout, &[Need::Build], arguments.boot.consent(), &say)?;
    cargo::run(cargo(
        layout,
        &["build", "--release", "-p", "fabricbios-gpu-test"],
    )?)?;
    let built = layout.target().join("release/gpu-test");
    if arguments.build {
        // Without debug symbols the program is a sixth as large.
        let small = built.with_file_name("gpu-test-stripped");
        let mut strip = Command::new("strip");
        cargo::run({
            strip.arg("-o").arg(&small).arg(&built);
            strip
        })?;
        println!("{}", small.display());
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = program(layout, &built.to_string_lossy(), &[]);
    command.args(&arguments.more);
    match arguments.stand_ins {
        true => run_on_stand_ins(layout, command, Scope::Needed, cargo::run)?,
        false => cargo::run(command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask test`: runs on stand-ins, without measurements.
pub(crate) fn step(layout: &Layout, scope: Scope) -> Result<Outcome> {
    scope.build(layout, &["-p", "fabricbios-gpu-test"])?;
    let built = layout.target().join("debug/gpu-test");
    let arguments = ["--rounds", "1", "--copy-mib", "8"];
    let command = program(layout, &built.to_string_lossy(), &arguments);
    run_on_stand_ins(layout, command, scope, |it| {
        cargo::run_beside("gpu-test", it)
    })
}

/// The step of `cargo xtask test`: builds with each vendor alone, and with none.
pub(crate) fn features(layout: &Layout) -> Result<Outcome> {
    for features in ["", "gpu-cuda", "gpu-hip"] {
        let arguments = [
            "clippy",
            "--quiet",
            "-p",
            "fabricbios-gpu",
            "--no-default-features",
            "--features",
            features,
            "--",
            "-D",
            "warnings",
        ];
        cargo::run(cargo(layout, &arguments)?)?;
    }
    Ok(Outcome::Passed)
}

/// Runs the command with the stand-ins in place of the vendors' libraries, and with devices of its own; `run` starts it.
pub(crate) fn run_on_stand_ins<T>(
    layout: &Layout,
    mut command: Command,
    scope: Scope,
    run: impl FnOnce(Command) -> Result<T>,
) -> Result<T> {
    let directory = stand_ins::build(layout, scope)?;
    let state = std::env::temp_dir().join(format!("stand-ins-{}", std::process::id()));
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("LD_LIBRARY_PATH", &directory)
        .env(
            "PATH",
            format!("{}:{path}", directory.join("bin").display()),
        )
        .env("FABRICBIOS_STAND_IN_DIR", &state);
    let ran = run(command);
    std::fs::remove_dir_all(state).ok();
    ran
}
