//! The programs themselves: bytes without symbols, and the time until a node without hardware says that it is ready.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;

use crate::{
    daemon::Daemon,
    figure::{Better, Of, micros, record, skipped},
    place::place_in,
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Starts of the daemon
    #[arg(long, default_value_t = 20)]
    starts: u16,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    for program in ["fabricbiosd", "fabricctl"] {
        let name = format!("programs/{program}");
        let beside = std::env::current_exe()?.with_file_name(program);
        if !beside.is_file() {
            let why = "it is not built; cargo build --release --bins -p fabricbios-node -p fabricbios-cli";
            skipped(&name, why)?;
            continue;
        }
        let small = place.path().join(program);
        let stripped = Command::new("strip")
            .arg("-o")
            .arg(&small)
            .arg(beside)
            .status();
        if !stripped.is_ok_and(|status| status.success()) {
            skipped(
                &name,
                "`strip` does not do it; on Debian: apt install binutils",
            )?;
            continue;
        }
        let megabytes = fs::metadata(small)?.len() as f64 / 1e6;
        println!("{program}, stripped: {megabytes:.2} MB");
        let of = Of {
            name: &name,
            what: &format!("{program}, stripped"),
            unit: "MB",
            better: Better::Lower,
        };
        record(of.alone(megabytes))?;
    }
    ready(options, place.path())
}

/// A start that makes the node's keys, and starts after it, of the stripped daemon in this directory. That is what packages
/// install: a daemon copies its program into memory when it starts, and beside its code symbols are several times as long.
fn ready(options: &Options, place: &Path) -> anyhow::Result<()> {
    let program = place.join("fabricbiosd");
    if !program.is_file() {
        return skipped("programs/ready", "there is no stripped fabricbiosd");
    }
    let arguments = "--mem-bytes=1MiB";
    let start = || Ok(Daemon::start_program(&program, place, arguments, None)?.ready_after);
    let first = start()?;
    let later: Vec<_> = (0..options.starts)
        .map(|_| start())
        .collect::<anyhow::Result<_>>()?;
    let milliseconds: Vec<f64> = micros(&later).iter().map(|it| it / 1e3).collect();
    println!("from exec to ready: first {first:?}, later {later:?}");
    let of = Of {
        name: "programs/ready",
        what: "a start of a node without hardware, from exec to its line that it is ready",
        unit: "ms",
        better: Better::Lower,
    };
    record(of.rounds(&milliseconds))
}
