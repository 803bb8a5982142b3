//! What things cost: `cargo run --release -p fabricbios-bench -- NAME`.
//!
//! A number from one machine says nothing about another, so each bench compares two things in
//! alternating rounds of one run and reports their ratio with an interval. Nothing here is a test
//! and nothing fails for being slow.

mod fdatasync;
mod pairs;
mod report;

use clap::{Parser, Subcommand};

/// Benchmarks of fabricBIOS.
#[derive(Debug, Parser)]
#[command(name = "fabricbios-bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// A durable commit of the journal against as many bare fdatasyncs in the same directory
    Fdatasync(fdatasync::Options),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    print!("{}", report::Setting::of_this_run());
    match arguments.bench {
        Bench::Fdatasync(options) => fdatasync::run(&options),
    }
}
