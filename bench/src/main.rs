//! Benchmarks: `cargo run --release -p fabricbios-bench -- NAME`; `cargo xtask bench` runs all of them.
//!
//! A number from one machine says nothing about another, so each bench compares two things in alternating
//! rounds of one run and reports their ratio with an interval. The benches are no tests and do not fail for
//! being slow, except `ends`, which is also a load test.

#[cfg(test)]
mod allocations;
mod bare_file;
mod churn;
mod cpu;
mod cycles;
mod daemon;
mod decision;
mod ends;
mod etcd;
mod fbbu;
mod fbmu;
mod fdatasync;
mod figure;
mod fleet;
mod fleet_page;
mod footprint;
mod gpu;
mod grant;
mod heap;
mod instructions;
mod lease_table;
mod net;
mod page;
mod pages;
mod pairs;
mod place;
mod programs;
mod python;
mod report;
mod rss;
mod scrape;
mod strategy;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use fabricbios_node::journal::{self, journal_main};

/// Benchmarks of fabricBIOS.
#[derive(Debug, Parser)]
#[command(name = "fabricbios-bench", version)]
struct Arguments {
    /// Append a line of JSON for each figure to this file, as `cargo xtask bench` reads them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// A durable commit of the journal against as many bare fdatasyncs in the same directory
    Fdatasync(fdatasync::Options),
    /// A durable grant against a bare QUIC round trip and as many fdatasyncs as a grant issues
    Grant(grant::Options),
    /// Grants and frees, 1, 32, 64 and 128 in flight, of one tenant and of eight, against etcd's leases; needs `fabricbiosd` beside this
    /// program, and `etcd` in the path for the comparison
    Churn(churn::Options),
    /// How late a quiet tenant's leases end beside 100,000 ends in one second of a loud one; needs `fabricbiosd` beside
    /// this program, and a machine that does nothing else
    Ends(ends::Options),
    /// Memory over UDP against a bare echo, an echo with the same tags, and a bare stream
    Fbmu(fbmu::Options),
    /// Blocks over UDP against NBD servers on the same file; needs no root and no kernel module
    FbbuNbd(fbbu::Options),
    /// Grants and rotations by window against region; needs an RDMA device
    Strategy(strategy::Options),
    /// Grants and cuts of CPU cores of each class against a shell script that makes the same control groups; needs root
    Cpu(cpu::Options),
    /// Grants and cuts of macvlan interfaces against a shell script that makes the same devices, and of virtual functions
    /// against macvlan; needs root
    Net(net::Options),
    /// `read_into` of the Python package against `read` of the SDK; needs `fabricbiosd` beside this program, and the package
    Python(python::Options),
    /// Memory, threads, descriptors, journal and processor time of a node by its live leases; needs `fabricbiosd` beside this program
    Footprint(footprint::Options),
    /// Memory of the daemon after many grants and frees of one tenant; needs `fabricbiosd` beside this program
    Rss(rss::Options),
    /// Bytes of the stripped programs, and the start of a node without hardware; needs `fabricbiosd` and `fabricctl` beside
    /// this program
    Programs(programs::Options),
    /// A scrape of the metrics of a node by its live leases, and its grants beside a collector against without; needs
    /// `fabricbiosd` beside this program
    Scrape(scrape::Options),
    /// The page of a node by its live leases, as an operator gets it: bytes and time; needs `fabricbiosd` beside this program
    Page(page::Options),
    /// Operations of the lease table with a million idle leases against one with a thousand
    LeaseTable(lease_table::Options),
    /// A scheduler's choice of nodes over 10,000 nodes that are nine tenths full, against 100 such nodes
    Decision(decision::Options),
    /// Leases through schedulers, against etcd and against nodes that are asked themselves; needs `fabricbios-scheduler` and
    /// `fabricbiosd` beside this program, and `etcd` in the path
    Fleet(fleet::Options),
    /// The page and the metrics of a scheduler by its nodes, as an operator gets them: bytes and time; needs `fabricbios-scheduler`
    /// beside this program, and `etcd` in the path
    FleetPage(fleet_page::Options),
    /// Launches on a session of a GPU, 64 ahead of one wait, against the bare driver; needs `gpu-test` beside this program, and the
    /// stand-ins of GPU libraries that `cargo xtask bench` builds
    Gpu(gpu::Options),
    /// Do the work of a hot path under callgrind, which counts it
    #[command(hide = true)]
    Instructions(instructions::Options),
    /// Write the journal: the journal process of a node in this program
    #[command(hide = true)]
    Journal(journal::Arguments),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.json {
        figure::append_to(path)?;
    }
    print!("{}", report::Setting::of_this_run());
    arguments.bench.run()
}

impl Bench {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Fdatasync(options) => fdatasync::run(&options),
            Self::LeaseTable(options) => lease_table::run(&options),
            Self::Decision(options) => decision::run(&options),
            Self::Gpu(options) => gpu::run(&options),
            Self::Footprint(options) => footprint::run(&options),
            Self::Rss(options) => rss::run(&options),
            Self::Programs(options) => programs::run(&options),
            Self::Scrape(options) => scrape::run(&options),
            Self::Page(options) => page::run(&options),
            Self::Fleet(options) => fleet::run(&options),
            Self::FleetPage(options) => fleet_page::run(&options),
            Self::Fbmu(options) => fbmu::run(&options),
            Self::FbbuNbd(options) => fbbu::run(&options),
            Self::Strategy(options) => strategy::run(&options),
            Self::Python(options) => python::run(&options),
            Self::Grant(options) => grant::run(&options),
            Self::Churn(options) => churn::run(&options),
            Self::Ends(options) => ends::run(&options),
            Self::Cpu(options) => cpu::run(&options),
            Self::Net(options) => net::run(&options),
            Self::Instructions(options) => instructions::run(&options),
            Self::Journal(arguments) => journal_main(&arguments),
        }
    }
}
