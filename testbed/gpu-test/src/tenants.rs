//! Tenants one after the other, and one beside another.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fabricbios_client::{Error, GpuBuilder, GpuLease, GpuMemory, GpuSession, wire::LeaseError};

use crate::{
    Arguments, bare,
    kernels::spin,
    node::Daemon,
    report::Report,
    scenarios::{lease, until_some},
};

/// The pattern that a tenant leaves on the device.
pub(crate) const PATTERN: [u8; 8] = *b"tenant1!";

/// About a second on a GPU; the stand-ins count them as nanoseconds.
const SPIN_CYCLES: u64 = 1_500_000_000;

/// Bytes of one buffer.
const PIECE: u64 = 32 << 20;

/// Fills memory of a session with the pattern: all that it can get, or `most` bytes. Returns the bytes and the buffers.
pub(crate) fn fill(session: &GpuSession, most: u64) -> Result<(u64, Vec<GpuMemory>)> {
    let piece = PIECE.min(session.info().vram_bytes / 4);
    let pattern: Vec<u8> = PATTERN
        .iter()
        .copied()
        .cycle()
        .take(usize::try_from(piece)?)
        .collect();
    let mut filled = 0;
    let mut pieces = Vec::new();
    while filled < most {
        let Ok(memory) = session.mem_alloc(piece) else {
            break;
        };
        session.mem_write(&memory, 0, &pattern)?;
        filled += piece;
        pieces.push(memory);
    }
    Ok((filled, pieces))
}

/// Looks for the pattern in all memory that a session can get, or in `most` bytes. Returns the bytes and how often the
/// pattern was there.
pub(crate) fn search(session: &GpuSession, most: u64) -> Result<(u64, usize)> {
    let piece = PIECE.min(session.info().vram_bytes / 4);
    let (mut searched, mut found) = (0, 0);
    let mut pieces = Vec::new();
    let mut bytes = vec![0; usize::try_from(piece)?];
    while searched < most {
        let Ok(memory) = session.mem_alloc(piece) else {
            break;
        };
        session.mem_read(&memory, 0, &mut bytes)?;
        searched += piece;
        found += bytes
            .windows(PATTERN.len())
            .filter(|it| *it == PATTERN)
            .count();
        pieces.push(memory);
    }
    Ok((searched, found))
}

/// The second tenant reads all memory that it can get, and finds no byte of the first tenant.
pub(crate) fn two_tenants(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let first = lease(&daemon.tenant("blue")?, 120)?;
    let session = GpuSession::new(&first)?;
    let (filled, _pieces) = fill(&session, 2 << 30)?;
    let _spin = spin(&session, u64::MAX)?;
    let waits = daemon.tenant("red")?;
    let refused = GpuBuilder::new()
        .on(&waits)
        .resource(first.info().resource_id)
        .min_vram(1)
        .patience(Duration::ZERO)
        .acquire();
    report.check(
        "a second tenant on a held device: CapacityExceeded",
        is_capacity(refused.as_ref().err()),
        format!("{refused:?}"),
    );
    // The worker is killed in the middle of a kernel, so the worker itself wipes nothing.
    let began = Instant::now();
    first.free()?;
    let second = lease(&daemon.tenant("red")?, 120)?;
    report.figure(
        "revoke to device free",
        "s",
        vec![began.elapsed().as_secs_f64()],
    );
    leftovers(&second, report)?;
    let session = GpuSession::new(&second)?;
    let (searched, found) = search(&session, 8 << 30)?;
    report.check(
        "the next tenant finds nothing of the first one's bytes",
        found == 0 && filled > 0 && searched >= filled,
        format!("{filled} bytes filled, {searched} searched, {found} found"),
    );
    let log = daemon.log();
    let mut told = log.lines().rev();
    let share = told.find_map(|line| {
        let (before, _) = line.split_once(" % of the memory that was free before the lease")?;
        before.rsplit(' ').next()?.parse::<f64>().ok()
    });
    report.check(
        "nearly all memory was wiped",
        share.is_some_and(|it| it > 99.0),
        format!("{share:?} %"),
    );
    second.free()?;
    Ok(())
}

/// Whether a request was refused as CapacityExceeded.
pub(crate) fn is_capacity(error: Option<&Error>) -> bool {
    let refusal = error.and_then(Error::refusal);
    refusal.is_some_and(|it| it.error == LeaseError::CapacityExceeded)
}

/// Plain processes see the memory as it is, whereas workers fill all memory that they hand out with zeros. No other
/// process uses the device.
fn leftovers(lease: &GpuLease, report: &mut Report) -> Result<()> {
    let binding = lease.binding();
    let device = binding.gpu().context("the binding of a GPU")?;
    let (bytes, looks, found) = bare::search(device)?;
    report.check(
        "a plain process finds nothing of the first tenant's bytes",
        found == 0 && looks > 0,
        format!("{bytes} bytes taken, {looks} looks, {found} saw them"),
    );
    let left = bare::leave(device)?;
    // The driver frees the memory of an ended process only after a while.
    let again = until_some(|| match bare::search(device) {
        Ok((taken, ..)) if taken + left <= bytes => None,
        searched => Some(searched),
    });
    let (_, _, found) = again.context("the memory of a plain process does not come back")??;
    let what = format!("{left} bytes left by a plain process, {found} looks saw them");
    match found {
        0 if env::var_os("FABRICBIOS_STAND_IN_DIR").is_none() => report.limit(format!(
            "the driver itself clears memory between processes ({what}), so it is not seen here that the scrub does"
        )),
        _ => {
            report.check("without a lease it would have", found > 0, what);
        }
    }
    Ok(())
}

/// A session belongs to the tenant, over any connection.
pub(crate) fn reconnect(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let lease = lease(&daemon.tenant("blue")?, 60)?;
    let session = GpuSession::new(&lease)?;
    let memory = session.mem_alloc(4096)?;
    session.mem_write(&memory, 0, b"still here")?;
    let (id, handle) = (session.id(), memory.keep());
    // Another connection of the same tenant; the first one is left open.
    let again = GpuLease::open(&daemon.tenant("blue")?, lease.lease_id())?;
    let attached = GpuSession::attach(&again, id)?;
    let mut bytes = [0; 10];
    attached.mem_read(&attached.memory(handle), 0, &mut bytes)?;
    report.check(
        "a session goes on over another connection",
        bytes == *b"still here",
        "",
    );
    let stranger = GpuLease::open(&daemon.tenant("red")?, lease.lease_id());
    report.check("and is not another tenant's", stranger.is_err(), "");
    // CUDA may wait for kernels before it gives a new stream its memory.
    let _spin = spin(&attached, SPIN_CYCLES)?;
    let began = Instant::now();
    GpuSession::attach(&again, id)?;
    let took = began.elapsed();
    report.figure(
        "attach beside a kernel",
        "ms",
        vec![took.as_secs_f64() * 1e3],
    );
    attached.sync()?;
    let ran = began.elapsed();
    report.figure("which ran for", "ms", vec![ran.as_secs_f64() * 1e3]);
    lease.free()?;
    Ok(())
}
