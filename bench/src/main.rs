//! What things cost: `cargo run --release -p fabricbios-bench -- NAME`.
//!
//! A number from one machine says nothing about another, so each bench compares two things in
//! alternating rounds of one run and reports their ratio with an interval. Nothing here is a test
//! and nothing fails for being slow.

mod bare_file;
mod fdatasync;
mod grant;
mod heap;
mod lease_table;
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
    /// A durable grant against a bare QUIC round trip and as many fdatasyncs as a grant issues
    Grant(grant::Options),
    /// Operations of the lease table with a million idle leases against one with a thousand
    LeaseTable(lease_table::Options),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    print!("{}", report::Setting::of_this_run());
    match arguments.bench {
        Bench::Fdatasync(options) => fdatasync::run(&options),
        Bench::LeaseTable(options) => lease_table::run(&options),
        Bench::Grant(options) => grant::run(&options),
    }
}
