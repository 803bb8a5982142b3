//! Hot paths for `cargo xtask test --only instructions`, which counts what they execute under valgrind's callgrind: the same
//! number on each run and machine, whatever else runs there.

use std::{hint::black_box, time::Duration};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use fabricbios_fallback_udp::DataKey;
use fabricbios_lease::{BindingId, Change, Effect, LeaseRecord, Order, Report};
use fabricbios_node::journal::records;
use fabricbios_wire::{
    DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey, LeaseId, LeaseInfo, Reply,
    Request, decode_answer, decode_request, encode_answer, encode_request,
};

use crate::lease_table::{SHORT_SECS, Subject, binding, owner, wanted};

/// Operations that are counted.
const OPERATIONS: u32 = 100;
/// Leases that live in the table meanwhile.
const LIVE: u32 = 1_000;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    path: HotPath,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HotPath {
    /// A datagram of FBMU: parse, verify its tag, make the answer with its tag
    Datagram,
    /// The table: a request and the report of its bind
    Grant,
    /// The table: leases fall due
    Tick,
    /// The table: the reports of a cut and of a release
    End,
    /// LEASE_ALLOC and its answer as frames
    EncodeMessages,
    DecodeMessages,
    /// The record of a lease in the journal
    EncodeRecord,
    DecodeRecord,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut subject = Subject::with_idle(LIVE, OPERATIONS);
    match options.path {
        HotPath::Datagram => datagram(),
        HotPath::Grant => times(|| {
            subject.grant(SHORT_SECS);
            Ok(())
        }),
        HotPath::Tick => {
            fall_due(&mut subject);
            counted(&mut || subject.table.on_tick(subject.now));
            Ok(())
        }
        HotPath::End => {
            let leases = fall_due(&mut subject);
            subject.table.on_tick(subject.now);
            subject.orders();
            counted(&mut || leases.iter().for_each(|it| subject.end(*it)));
            Ok(())
        }
        HotPath::EncodeMessages | HotPath::DecodeMessages => messages(options.path, &mut subject),
        HotPath::EncodeRecord | HotPath::DecodeRecord => record(options.path, &mut subject),
    }
}

/// Leases whose terms are over.
fn fall_due(subject: &mut Subject) -> Vec<BindingId> {
    let leases = (0..OPERATIONS).map(|_| subject.grant(SHORT_SECS)).collect();
    subject.now.boot = subject.now.boot + Duration::from_secs(SHORT_SECS.into());
    leases
}

/// A lease as its tenant is told of it, and its record.
fn lease(subject: &mut Subject) -> anyhow::Result<(LeaseInfo, LeaseRecord)> {
    let id = LeaseId(1);
    subject.ask(owner(id), id, Request::LeaseAlloc(wanted(SHORT_SECS)));
    let (mut told, mut record) = (None, None);
    while let Some(effect) = subject.table.poll_effect() {
        match effect {
            Effect::Order { order, .. } => {
                if let Order::Bind(order) = subject.heard(order) {
                    let bound = Report::Bind(order.binding_id, Ok(binding()));
                    subject
                        .table
                        .on_report(subject.now, subject.now.boot, bound);
                }
            }
            Effect::Answer {
                answer: Ok(Reply::Lease(it)),
                ..
            } => told = Some(it),
            Effect::Journal(Change::PutLease(it)) => record = Some(it),
            _ => {}
        }
    }
    told.zip(record).context("a grant without answer or record")
}

fn datagram() -> anyhow::Result<()> {
    let key = DataKey::new(&DpKey([7; 32]));
    let header = DataHeader {
        nonce: 1,
        length: 64,
        ..DataHeader::request(DataService::Memory, DataOp::Read, LeaseId(7))
    };
    let datagram = key.seal(header, &[]);
    times(|| {
        let frame = DataFrame::parse(black_box(&datagram)).map_err(|it| anyhow!("{it:?}"))?;
        anyhow::ensure!(key.verifies(&frame), "a wrong tag");
        black_box(key.seal(frame.header.answered(DataStatus::Ok), &[]));
        Ok(())
    })
}

fn messages(path: HotPath, subject: &mut Subject) -> anyhow::Result<()> {
    let (lease, _) = lease(subject)?;
    let request = Request::LeaseAlloc(wanted(60));
    let answer = Ok(Reply::Lease(lease));
    let frame = encode_request(1, 1, &request);
    let (header, _) = decode_request(&frame).map_err(|it| anyhow!("{it:?}"))?;
    let answered = encode_answer(&header, &answer);
    times(|| {
        match path {
            HotPath::EncodeMessages => {
                black_box(encode_request(1, 1, black_box(&request)));
                black_box(encode_answer(&header, black_box(&answer)));
            }
            _ => {
                black_box(decode_request(black_box(&frame)).is_ok());
                black_box(decode_answer(&header, black_box(&answered)).is_ok());
            }
        }
        Ok(())
    })
}

fn record(path: HotPath, subject: &mut Subject) -> anyhow::Result<()> {
    let (_, record) = lease(subject)?;
    let bytes = postcard::to_allocvec(&record)?;
    times(|| {
        match path {
            HotPath::EncodeRecord => drop(black_box(postcard::to_allocvec(black_box(&record))?)),
            _ => drop(black_box(records::decode::<LeaseRecord>(black_box(
                &bytes,
            ))?)),
        }
        Ok(())
    })
}

fn times(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut ended = Ok(());
    counted(&mut || ended = (0..OPERATIONS).try_for_each(|_| work()));
    ended
}

/// Callgrind collects only inside of this function; it knows it by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}
