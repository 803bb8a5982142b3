//! The cost of authentication, sessions and leases per datagram: FBMU against threads that receive and send in
//! the same way and do less.
//!
//! - small READs against a bare echo that sends as many bytes back;
//! - the same against an echo that checks the tag of the request and makes a tag for the reply;
//! - bulk WRITEs by the real client against a bare stream: the same datagrams, made beforehand, each answered
//!   by as many bytes.
//!
//! Requests of the small READs are signed before the clock starts, so that the client's own work is not
//! measured.

mod echo;
mod load;
mod servers;

use std::time::{Duration, Instant};

use clap::Args;
use fabricbios_fallback_udp::{ClientOptions, Coordinates, MemoryClient};
use fabricbios_wire::DATA_PAYLOAD_MAX;

use crate::{figure::Figure, pairs::interleaved_pairs, report::per_second};
use load::Load;
use servers::{Echo, Leased};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Small READs in a round
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    reads: u32,
    /// MiB written in a bulk round
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=512))]
    bulk_mib: u32,
}

/// Bytes of a small READ.
const READ_BYTES: u32 = 64;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let bytes = u64::from(options.bulk_mib) << 20;
    let leased = Leased::open(bytes)?;
    let reads = usize::try_from(options.reads)?;
    println!(
        "one serving thread; {READ_BYTES}-byte READs, {} in flight, loopback",
        load::IN_FLIGHT
    );
    let name = "fbmu/reads";
    against(options, &leased, reads, name, &Echo::bare()?)?;
    let name = "fbmu/reads-tags";
    against(
        options,
        &leased,
        reads,
        name,
        &Echo::with_tags(&leased.key())?,
    )?;
    bulk(options, &leased, bytes)
}

/// Small READs of the lease, and the same datagrams at the echo.
fn against(
    options: &Options,
    leased: &Leased,
    reads: usize,
    figure: &str,
    echo: &Echo,
) -> anyhow::Result<()> {
    let mut load = Load::new(leased)?;
    let mut same = Load::new(leased)?.towards(echo.address)?;
    let pairs = interleaved_pairs(
        options.rounds.into(),
        || same.small_reads(reads, READ_BYTES),
        || load.small_reads(reads, READ_BYTES),
    )?;
    let each = |times: &[Duration]| per_second(times, reads);
    println!(
        "\n{}: {:.0} a second; FBMU {:.0} a second (medians)",
        echo.name,
        each(&pairs.a),
        each(&pairs.b)
    );
    pairs.print(echo.name, "FBMU");
    println!("which is the rate of FBMU in that of the echo");
    Figure::record_rates(
        figure,
        "FBMU: READs of 64 bytes, 64 in flight, one serving thread",
        (&pairs.b, &pairs.a, echo.name),
        options.reads.into(),
        "a second",
    )
}

fn bulk(options: &Options, leased: &Leased, bytes: u64) -> anyhow::Result<()> {
    let contents = vec![0x5a; usize::try_from(bytes)?];
    let coordinates = Coordinates {
        lease_id: leased.lease_id(),
        dp_key: leased.key(),
        endpoint: leased.address(),
    };
    let mut client = MemoryClient::connect(coordinates, ClientOptions::default(), None)?;
    // The MTU of loopback is larger than the longest datagram.
    let payload = DATA_PAYLOAD_MAX;
    let echo = Echo::of_writes()?;
    let mut stream = Load::new(leased)?.towards(echo.address)?;
    let count = contents.len().div_ceil(payload);
    let pairs = interleaved_pairs(
        options.rounds.into(),
        || stream.writes(count, payload),
        || {
            let start = Instant::now();
            client.write(0, &contents, &mut |_| ())?;
            Ok(start.elapsed())
        },
    )?;
    let rate = |times: &[Duration]| per_second(times, contents.len()) / f64::from(1 << 20);
    println!(
        "\nbulk, datagrams of {payload} bytes: {} {:.0} MiB/s; MemoryClient {:.0} MiB/s (medians)",
        echo.name,
        rate(&pairs.a),
        rate(&pairs.b)
    );
    pairs.print(echo.name, "MemoryClient");
    println!("which is the rate of MemoryClient in that of the stream");
    Figure::record_rates(
        "fbmu/bulk",
        "FBMU: bytes written by MemoryClient, datagrams of 9 KiB",
        (&pairs.b, &pairs.a, echo.name),
        options.bulk_mib.into(),
        "MiB/s",
    )
}
