//! The test of GPU leases on the GPUs of this machine: `gpu-test`. It contains the daemon, so a machine needs only this
//! one file. It changes no setting of a device and resets no device. With the stand-ins of the vendors' libraries on
//! LD_LIBRARY_PATH it runs the same scenarios on them, and reports that.

mod bare;
mod faults;
mod kernels;
mod launches;
mod node;
mod plain;
mod program;
mod programs;
mod report;
mod scenarios;
mod shared;
mod speed;
mod tenants;

use std::{env, process::ExitCode};

use clap::Parser;

use crate::report::Report;

/// Tests GPU leases on the GPUs of this machine.
#[derive(Debug, Parser)]
#[command(name = "gpu-test", version)]
struct Arguments {
    /// Run only these scenarios
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Bytes of each measured copy, MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    copy_mib: u64,
    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 15)]
    rounds: usize,
}

fn main() -> ExitCode {
    // The daemon starts copies of this program; their first argument is a subcommand of the daemon.
    let is_daemon = env::args()
        .nth(1)
        .is_some_and(|first| node::SUBCOMMANDS.contains(&&*first));
    if is_daemon {
        return fabricbios_node::process::program::main();
    }
    if env::args().nth(1).as_deref() == Some(bare::SUBCOMMAND) {
        return bare::main();
    }
    if env::args().nth(1).as_deref() == Some(program::SUBCOMMAND) {
        return program::main();
    }
    let arguments = Arguments::parse();
    let mut report = Report::default();
    if let Err(error) = scenarios::run(&arguments, &mut report) {
        report.failed("run to the end", &format!("{error:#}"));
    }
    report.print(arguments.json)
}
