//! The cost of leasing: a durable grant of memory over UDP, requested by the SDK over loopback QUIC, against a PING over the
//! same connection followed by one write and fdatasync, as the group commit of the grant issues them
//! (docs/decisions/0046). And against the same with the hand-offs of a grant: the driver owns the table, and a process of
//! its own waits for the disk, so a grant wakes four threads more than a PING (docs/architecture.md, "The way of one lease").

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use fabricbios_wire::{LeaseAllocRequest, Request, ResourceType};

use crate::{
    bare_file::Bare, daemon::Daemon, figure::Figure, pairs::interleaved_pairs, place::place_in,
};

const LEASE_BYTES: u64 = 4096;
const TERM_SECS: u32 = 60;
/// What the commit of a grant writes.
const COMMIT_BYTES: usize = 512;
/// Before each round: the node writes down the release of the last lease.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Directory of the journal; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let mut bare = Bare::create(&place.path().join("bare"), COMMIT_BYTES)?;
    let mut threads = Threads::start()?;
    let daemon = Daemon::start(
        place.path(),
        "--mem-bytes=64MiB --requests-per-tenant-max=0",
    )?;
    let node = daemon.tenant("tenant")?;
    println!("directory {}", options.dir.display());
    let mut compare = |name: &str, peer: &str, with_threads: bool| {
        let grant = || {
            thread::sleep(PAUSE);
            let start = Instant::now();
            let lease = node.alloc(request())?;
            let took = start.elapsed();
            node.call(Request::LeaseFree(lease.lease_id))?;
            Ok(took)
        };
        let floor = || {
            thread::sleep(PAUSE);
            let start = Instant::now();
            node.call(Request::Ping(1))?;
            if with_threads {
                threads.pass_around()?;
                threads.pass_around()?;
            }
            bare.sync()?;
            Ok(start.elapsed())
        };
        let pairs = interleaved_pairs(usize::from(options.rounds), grant, floor)?;
        pairs.print("durable grant", peer);
        Figure::record_times(name, "durable grant", &pairs, peer)
    };
    let floor = format!("PING + write {COMMIT_BYTES} bytes, fdatasync");
    compare("grant/one-sync", &floor, false)?;
    let floor = format!("{floor} + the wakes of four threads");
    compare("grant/hand-offs", &floor, true)
}

/// A thread that sends back what it gets: each way wakes a thread.
struct Threads(UnixStream);

impl Threads {
    fn start() -> anyhow::Result<Self> {
        let (ours, mut its) = UnixStream::pair()?;
        // It ends with the other end of the socket.
        thread::spawn(move || {
            let mut byte = [0];
            while its
                .read_exact(&mut byte)
                .and_then(|()| its.write_all(&byte))
                .is_ok()
            {}
        });
        Ok(Self(ours))
    }

    fn pass_around(&mut self) -> anyhow::Result<()> {
        self.0.write_all(&[1])?;
        Ok(self.0.read_exact(&mut [0])?)
    }
}

fn request() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, TERM_SECS)
}
