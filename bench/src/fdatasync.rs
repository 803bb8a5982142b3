//! The journal's cost beyond the disk's: a durable commit against one write of as many bytes and one fdatasync, on a file
//! in the same directory.

use std::{
    os::fd::AsFd,
    path::PathBuf,
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use clap::Args;
use fabricbios_channel::is_readable_within;
use fabricbios_helper::Program;
use fabricbios_node::journal::{Change, CommitError, Journal, JournalCounts, Key, Seq};
use fabricbios_wire::LeaseId;

use crate::{bare_file::Bare, figure::Figure, pairs::interleaved_pairs, place::place_in};

const WARM_UP_ROUNDS: u64 = 10;
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Leases in one commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    group: u16,
    /// Bytes of a lease's record
    #[arg(long, default_value_t = 300)]
    record_bytes: u16,
    /// Directory to write in; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let mut journal = Subject::open(&place.path().join("journal.redb"), options)?;
    let bytes = journal.bytes_of_a_commit()?;
    let mut bare = Bare::create(&place.path().join("bare"), bytes)?;
    let before = journal.counts();
    let rounds = usize::from(options.rounds);
    let pairs = interleaved_pairs(rounds, || journal.commit(), || bare.sync())?;
    let after = journal.counts();
    println!("directory {}", options.dir.display());
    println!(
        "leases of {} bytes in a commit: {}",
        options.record_bytes, options.group
    );
    let each = |count: fn(&JournalCounts) -> u64| {
        (count(&after) - count(&before)) as f64 / f64::from(options.rounds)
    };
    let (fdatasyncs, writes) = (each(|c| c.syncs), each(|c| c.writes));
    println!(
        "per commit: {fdatasyncs:.2} fdatasyncs, {writes:.1} writes, {:.0} bytes",
        each(|c| c.written_bytes)
    );
    let peer = format!("write {bytes} bytes, fdatasync");
    pairs.print("durable commit", &peer);
    Figure::record_times(
        "fdatasync/commit",
        "durable commit of the journal",
        &pairs,
        &peer,
    )?;
    Ok(journal.journal.close()?)
}

struct Subject {
    journal: Journal,
    reports: Receiver<Result<Seq, CommitError>>,
    record: Vec<u8>,
    group: u128,
    next_id: u128,
}

impl Subject {
    fn open(path: &std::path::Path, options: &Options) -> anyhow::Result<Self> {
        let (tell, reports) = channel();
        // The bench may have ended before the last report.
        let on_commit = Box::new(move |report| tell.send(report).unwrap_or_default());
        let (journal, _) = Journal::open(&Program::of_this_process()?, path, "bench", on_commit)?;
        journal.drive();
        let record = vec![0xA5; usize::from(options.record_bytes)];
        Ok(Self {
            journal,
            reports,
            record,
            group: u128::from(options.group),
            next_id: 0,
        })
    }

    /// The time from submission to the report of durability.
    fn commit(&mut self) -> anyhow::Result<Duration> {
        let ids = self.next_id..self.next_id + self.group;
        self.next_id = ids.end;
        // Lease ids are random; an odd multiplier spreads these over the tree in the same way.
        let spread = |id: u128| LeaseId(id.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
        let changes = ids
            .map(|id| Change::put(Key::Lease(spread(id)), self.record.clone()))
            .collect();
        let start = Instant::now();
        let seq = self.journal.submit(changes);
        // As the driver waits.
        let mut durable = None;
        while durable < Some(seq) {
            durable = match self.journal.awaited() {
                Some(socket) => {
                    is_readable_within(socket.as_fd(), Duration::MAX)?;
                    self.journal.hear()
                }
                None => Some(self.reports.recv()??),
            };
        }
        Ok(start.elapsed())
    }

    fn bytes_of_a_commit(&mut self) -> anyhow::Result<usize> {
        // The first count includes the bytes of opening the journal.
        self.commit()?;
        let before = self.counts().written_bytes;
        for _ in 0..WARM_UP_ROUNDS {
            self.commit()?;
        }
        let bytes = (self.counts().written_bytes - before) / WARM_UP_ROUNDS;
        Ok(usize::try_from(bytes)?)
    }

    fn counts(&self) -> JournalCounts {
        self.journal.counts()
    }
}
