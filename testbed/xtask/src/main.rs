//! The project's own commands. `cargo xtask --help` lists them; `docs/testing.md` explains them.
//!
//! This crate contains the list of checks and their order. `fabricbios-testbed` boots guests; each suite
//! contains its own assertions.
//!
//! Read first: `test.rs`, the list of all checks.

mod across_versions;
mod affected;
mod bench;
mod blktests;
mod cargo;
mod checkout;
mod checks;
mod compare;
mod demo;
mod files;
mod fleet_sim;
mod fstests;
mod fuzz;
mod gpu_test;
mod instructions;
mod lab;
mod lanes;
mod lines;
mod metrics;
mod package;
mod packages;
#[cfg(test)]
mod pages;
mod pip;
mod progress;
mod runner;
mod sim;
mod stand_ins;
mod suites;
mod test;
mod toolchain;
mod upstream;
mod wheels;

use clap::{Parser, Subcommand};
use fabricbios_testbed::Layout;
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "fabricBIOS: demo, tests and the lab"
)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Lease memory over RDMA and see the access end with the lease, in a guest with soft-RoCE
    Demo(demo::Arguments),
    /// Run every check: format, lints, dependencies, tests, documentation, and the lab suites
    Test(test::Arguments),
    /// Run a command, or a shell, as root under the lab kernel, with this checkout
    Lab(lab::Arguments),
    /// Look for inputs that break a parser, the UDP engine or the lease table
    Fuzz(fuzz::Arguments),
    /// Run the node on a simulated machine, from one seed or for some time
    Sim(sim::Arguments),
    /// Run many nodes in one process with real schedulers and etcd, under faults
    FleetSim(fleet_sim::Arguments),
    /// Lease the GPUs of this machine, or stand-ins, and check what happens
    GpuTest(gpu_test::Arguments),
    /// Run the measurements
    Bench(bench::Arguments),
    /// Count the lines of code, without comments and blanks, of each top-level folder
    Lines(lines::Arguments),
    /// Run the NVMe group of blktests, from a checkout of it, against a node in a guest
    Blktests(blktests::Arguments),
    /// Run tests of xfstests, from a checkout of it, on leased devices and on loop devices in guests
    Fstests(fstests::Arguments),
    /// Run stock Mooncake and NIXL on a lease and without, and show what each reader gets when its memory is somebody else's
    Compare(compare::Arguments),
    /// Build the stand-ins of the vendors' GPU libraries, for tests without a GPU, in target/stand-ins
    StandIns,
    /// Make the Debian packages of node, client and scheduler
    Package(package::Arguments),
    /// Run nodes and clients of this version and of an earlier one with each other
    AcrossVersions(across_versions::Arguments),
    /// Run a check that needs another toolchain or target: the oldest Rust, aarch64, Miri
    Toolchain(toolchain::Arguments),
    /// Show what the lab and the tests need and this host lacks; install it with --yes
    Setup(lab::SetupArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("testbed/xtask is two folders below the checkout");
    let layout = Layout::new(repository);
    let result = match arguments.command {
        Task::Demo(arguments) => demo::run(&layout, &arguments),
        Task::Test(arguments) => test::run(&layout, &arguments),
        Task::Fuzz(arguments) => fuzz::run(&layout, &arguments),
        Task::Sim(arguments) => sim::run(&layout, &arguments),
        Task::FleetSim(arguments) => fleet_sim::run(&layout, &arguments),
        Task::GpuTest(arguments) => gpu_test::run(&layout, &arguments),
        Task::Bench(arguments) => bench::run(&layout, &arguments),
        Task::Lines(arguments) => lines::run(&layout, &arguments),
        Task::Blktests(arguments) => blktests::run(&layout, &arguments),
        Task::Fstests(arguments) => fstests::run(&layout, &arguments),
        Task::Compare(arguments) => compare::run(&layout, &arguments),
        Task::Lab(arguments) => lab::run(&layout, &arguments),
        Task::StandIns => stand_ins::command(&layout),
        Task::Package(arguments) => package::run(&layout, &arguments),
        Task::AcrossVersions(arguments) => across_versions::run(&layout, &arguments),
        Task::Toolchain(arguments) => toolchain::run_check(&layout, &arguments),
        Task::Setup(arguments) => lab::setup(&layout, &arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
