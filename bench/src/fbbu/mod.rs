//! Blocks over UDP against NBD: one file, one client, one serving thread each, over loopback. Reads and writes
//! of 4 KiB at random places, 16 in flight.
//!
//! - FBBU: the crate's own client, so both ends pay for tags, nonces and order.
//! - NBD: a widely used server, with our own client that does only the work required by the protocol.
//!
//! Both bypass the page cache if the file system allows it. On a file system in memory there is no disk, so
//! only the cost of the transport is measured.

mod leased;
mod nbd;
mod peer;
mod places;

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    figure::{Figure, skipped},
    pairs::{Pairs, interleaved_pairs},
    place::place_in,
    report::per_second,
};
use leased::Leased;
use nbd::Nbd;
use peer::{Peer, Server};
use places::Places;

/// Bytes of a block, and of an operation.
const BLOCK_BYTES: u32 = 4096;
const BLOCK: usize = BLOCK_BYTES as usize;
/// The most operations in flight.
const IN_FLIGHT: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Operations in a round
    #[arg(long, default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(100..))]
    operations: u32,
    /// MiB of the file
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    mib: u32,
    /// Directories of the file, used one after the other: a disk, and memory
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "target,/dev/shm",
        value_name = "DIRECTORY"
    )]
    dir: Vec<PathBuf>,
    /// NBD servers; default: all that are installed
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "qemu-native,qemu-uring,nbdkit"
    )]
    peer: Vec<Peer>,
}

/// The operation on each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    for dir in &options.dir {
        let kind = match peer::is_in_memory(dir)? {
            true => "tmpfs",
            false => "disk",
        };
        let mut compared = Vec::new();
        for peer in &options.peer {
            match peer.obstacle(dir)? {
                Some(obstacle) => skipped(
                    &format!("fbbu-nbd/{kind}-{peer:?}").to_lowercase(),
                    &obstacle,
                )?,
                None => compared.extend(against(options, *peer, dir)?),
            }
        }
        for way in [Way::Read, Way::Write] {
            record_best(options, kind, way, &compared)?;
        }
    }
    Ok(())
}

/// Rounds of NBD (A) and of FBBU (B) against one server.
struct Compared {
    way: Way,
    server: String,
    pairs: Pairs,
}

/// Records the comparison with the server against which FBBU does worst.
fn record_best(
    options: &Options,
    kind: &str,
    way: Way,
    compared: &[Compared],
) -> anyhow::Result<()> {
    let of_way = compared.iter().filter(|it| it.way == way);
    // The ratio of the times is that of FBBU's rate to the server's.
    let rate = |it: &&Compared| it.pairs.ratio().map_or(f64::INFINITY, |it| it.median);
    let Some(best) = of_way.min_by(|a, b| rate(a).total_cmp(&rate(b))) else {
        return Ok(());
    };
    Figure::record_rates(
        &format!("fbbu-nbd/{kind}-{way:?}").to_lowercase(),
        &format!("FBBU: {way:?}s of 4 KiB at random, {IN_FLIGHT} in flight, {kind}"),
        (&best.pairs.b, &best.pairs.a, &best.server),
        options.operations.into(),
        "a second",
    )
}

fn against(options: &Options, peer: Peer, dir: &Path) -> anyhow::Result<[Compared; 2]> {
    let place = place_in(dir)?;
    let path = place.path().join("blocks");
    let bytes = u64::from(options.mib) << 20;
    fill(&path, bytes)?;
    let mut leased = Leased::open(&path, bytes)?;
    let server = Server::start(peer, &path, place.path())?;
    let mut nbd = Nbd::connect(server.address())?;
    println!(
        "\n{} MiB in {}; NBD: {}",
        options.mib,
        dir.display(),
        server.command()
    );
    same_file(&mut leased, &mut nbd)?;
    let mut places = Places::new(bytes / u64::from(BLOCK_BYTES));
    let mut compared = |way| {
        let pairs = compare(options, way, &mut leased, &mut nbd, &mut places)?;
        anyhow::Ok(Compared {
            way,
            server: peer.to_string(),
            pairs,
        })
    };
    Ok([compared(Way::Read)?, compared(Way::Write)?])
}

fn compare(
    options: &Options,
    way: Way,
    leased: &mut Leased,
    nbd: &mut Nbd,
    places: &mut Places,
) -> anyhow::Result<Pairs> {
    let count = usize::try_from(options.operations)?;
    // Warm up the caches and open the congestion window.
    nbd.round(way, &places.next(count))?;
    leased.round(way, &places.next(count))?;
    // Both use the same blocks.
    let mut own = places.clone();
    let pairs = interleaved_pairs(
        options.rounds.into(),
        || nbd.round(way, &places.next(count)),
        || leased.round(way, &own.next(count)),
    )?;
    println!(
        "\n{way:?}s of {BLOCK} bytes, {IN_FLIGHT} in flight: NBD {:.0} a second, FBBU {:.0} a second (medians)",
        per_second(&pairs.a, count),
        per_second(&pairs.b, count)
    );
    pairs.print("NBD", "FBBU");
    println!("which is the rate of FBBU in that of NBD");
    Ok(pairs)
}

/// Writes the whole file, so that no round has to allocate blocks.
fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut file = File::create_new(path).with_context(|| format!("make {}", path.display()))?;
    let mebibyte = vec![0xA5; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&mebibyte)?;
    }
    Ok(file.sync_all()?)
}

/// Blocks written over one transport are read over the other.
fn same_file(leased: &mut Leased, nbd: &mut Nbd) -> anyhow::Result<()> {
    let block = vec![0x3C; BLOCK];
    leased.write(7, &block)?;
    ensure!(nbd.read(7)? == block, "NBD and FBBU serve different files");
    Ok(())
}
