//! Tenants that share a device: each has its own memory, and its own end.

use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use fabricbios_client::{
    GpuLease, GpuMemory, GpuSession, Node,
    wire::{GpuBinding, GpuExclusivityClass, LeasePhase, Reply, Request, RevokeOutcome},
};

use crate::{
    Arguments, bare,
    kernels::{adds, spin},
    node::{Daemon, is_on_stand_ins},
    report::Report,
    scenarios::{check_device, gpu, granted, lease, request, until_some},
    tenants::{fill, is_capacity, search},
};

/// Most bytes of a shared lease.
const PART_MAX: u64 = 512 << 20;
/// Term of a shared lease, seconds.
const TERM_SECS: u32 = 120;
/// Numbers of each sum of a neighbour.
const COUNT: u32 = 10_007;
/// Some 20 ms on a GPU; the stand-ins count them as nanoseconds.
const CYCLES: u64 = 30_000_000;
/// The bytes that a neighbour has on the device.
const KEPT: [u8; 16] = *b"the neighbour's!";

/// A part of the first GPU that accepts PTX, beside other leases.
pub(crate) fn share(node: &Node) -> Result<GpuLease> {
    let gpu = gpu(node)?;
    let bytes = PART_MAX.min(gpu.vram_bytes / 8);
    let class = GpuExclusivityClass::Shared;
    granted(|| request(node, &gpu, class, bytes, TERM_SECS))
}

/// Two sessions on one device at once, each with the memory of its lease.
pub(crate) fn two_at_once(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let blue = share(&daemon.tenant("blue")?)?;
    let red = share(&daemon.tenant("red")?)?;
    let (first, second) = (GpuSession::new(&blue)?, GpuSession::new(&red)?);
    let (one, other) = (first.info(), second.info());
    report.on(&one.device);
    let part = blue.info().capacity;
    report.check(
        "two tenants have sessions on one device at once, each with the memory of its lease",
        one.uuid == other.uuid && one.vram_bytes == part && other.vram_bytes == part,
        format!("{part} bytes each"),
    );
    let green = daemon.tenant("green")?;
    let gpu = gpu(&green)?;
    let left = gpu.vram_bytes - 2 * part;
    let shared = GpuExclusivityClass::Shared;
    let too_much = request(&green, &gpu, shared, left + 1, TERM_SECS)
        .compute_slices(1)
        .patience(Duration::ZERO)
        .acquire();
    report.check(
        "a third tenant that asks for more memory than is left: CapacityExceeded",
        is_capacity(too_much.as_ref().err()),
        format!("{left} bytes left, {too_much:?}"),
    );
    let all = first.mem_alloc(part / 2)?;
    let more = first.mem_alloc(part / 2 + 1);
    report.check(
        "a session that takes more than its lease's memory: CapacityExceeded",
        is_capacity(more.as_ref().err()),
        format!("{:?}", more.as_ref().err()),
    );
    drop(all);
    let (right, (beside, rounds)) = beside(&second, || adds(&first, COUNT, CYCLES))?;
    report.check(
        "both compute at once as on the CPU",
        right && beside,
        format!("{rounds} sums of the second tenant meanwhile"),
    );
    blue.free()?;
    red.free()?;
    Ok(())
}

/// The ends of a tenant's leases, idle and in the middle of a kernel, beside a neighbour's kernels.
pub(crate) fn ends(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let blue = share(&daemon.tenant("blue")?)?;
    let neighbour = GpuSession::new(&blue)?;
    let kept = keep(&neighbour)?;
    let of = device(&blue)?;
    let (room, ..) = bare::search(&of)?;
    let red = daemon.tenant("red")?;
    for (how, cycles) in [
        ("idle", None),
        ("in the middle of a kernel", Some(u64::MAX)),
    ] {
        let ending = share(&red)?;
        let session = GpuSession::new(&ending)?;
        let (filled, _pieces) = fill(&session, PART_MAX)?;
        let _spin = cycles.map(|it| spin(&session, it)).transpose()?;
        let (took, (is_right, rounds)) = beside(&neighbour, || revoke(daemon, &red, &ending))?;
        report.figure(&format!("{how}: revoke to its answer"), "s", vec![took]);
        let after = session.sync();
        report.check(
            &format!("{how}: a revoked shared lease ends its session"),
            after.is_err(),
            format!("{:?}", after.err()),
        );
        report.check(
            &format!("{how}: its neighbour's kernels go on and end right, in the same session"),
            is_right && is_kept(&neighbour, &kept)?,
            format!("{rounds} sums"),
        );
        match cycles {
            None => check_wiped(&of, room.saturating_sub(filled / 2), report)?,
            Some(_) => look_behind_killed(&of, report)?,
        }
        // The other half stays as it is, for the search behind the last lease.
        let green = share(&daemon.tenant("green")?)?;
        let (searched, found) = search(&GpuSession::new(&green)?, filled / 2)?;
        report.check(
            &format!("{how}: the next tenant beside the neighbour finds nothing of its bytes"),
            found == 0 && searched > 0,
            format!("{filled} bytes filled, {searched} searched, {found} found"),
        );
        green.free()?;
    }
    let its_own = is_kept(&neighbour, &kept)?;
    report.check("the neighbour's bytes are as they were", its_own, "");
    blue.free()?;
    // The worker that was killed has left its bytes: the device is wiped behind the last lease.
    let alone = lease(&daemon.tenant("green")?, 60)?;
    let (bytes, looks, found) = bare::search(&device(&alone)?)?;
    report.check(
        "behind the last shared lease a plain process finds nothing of all tenants",
        found == 0 && looks > 0,
        format!("{bytes} bytes taken, {looks} looks, {found} saw them"),
    );
    alone.free()?;
    check_device("the device goes on behind shared leases", daemon, report)
}

/// A worker that was asked to close has wiped its memory. `room`: bytes that are free when all of it has come back.
fn check_wiped(of: &GpuBinding, room: u64, report: &mut Report) -> Result<()> {
    let searched = until_some(|| match bare::search(of) {
        Ok((bytes, ..)) if bytes < room => None,
        searched => Some(searched),
    });
    let (bytes, looks, found) =
        searched.context("the memory of a session does not come back")??;
    report.check(
        "idle: a plain process beside the neighbour finds nothing of its bytes",
        found == 0 && looks > 0,
        format!("{bytes} bytes taken, {looks} looks, {found} saw them"),
    );
    Ok(())
}

/// A worker that was killed has wiped nothing: a plain process can see its bytes until the last lease is over.
fn look_behind_killed(of: &GpuBinding, report: &mut Report) -> Result<()> {
    if !is_on_stand_ins() {
        let (_, looks, found) = bare::search(of)?;
        report.limit(format!(
            "the bytes of a killed worker until the last shared lease is over: {found} of {looks} looks saw them"
        ));
        return Ok(());
    }
    // The memory of a dead process comes back a while later.
    let found = until_some(|| match bare::search(of) {
        Ok((.., 0)) => None,
        searched => Some(searched),
    });
    let what = "in the middle of a kernel: its bytes are there until the last lease is over";
    report.check(what, found.transpose()?.is_some(), "");
    Ok(())
}

/// The device of a lease.
pub(crate) fn device(lease: &GpuLease) -> Result<GpuBinding> {
    let binding = lease.binding();
    Ok(binding.gpu().context("the binding of a GPU")?.clone())
}

/// The operator takes a lease back. Returns the seconds until the answer.
fn revoke(daemon: &Daemon, tenant: &Node, lease: &GpuLease) -> Result<f64> {
    let began = Instant::now();
    let reply = daemon
        .operator()?
        .call(Request::LeaseRevoke(lease.lease_id()))?;
    let took = began.elapsed().as_secs_f64();
    let is_torn_down = matches!(reply, Reply::Revoked(RevokeOutcome::TornDown));
    ensure!(is_torn_down, "the revocation was answered with {reply:?}");
    let info = tenant.lease(Request::LeaseQuery(lease.lease_id()))?;
    ensure!(
        info.phase == LeasePhase::Revoked,
        "a revoked lease is {:?}",
        info.phase
    );
    Ok(took)
}

/// Has a session keep bytes on the device.
pub(crate) fn keep(session: &GpuSession) -> Result<GpuMemory> {
    let memory = session.mem_alloc(KEPT.len() as u64)?;
    session.mem_write(&memory, 0, &KEPT)?;
    Ok(memory)
}

/// Whether the same session still has its bytes.
pub(crate) fn is_kept(session: &GpuSession, memory: &GpuMemory) -> Result<bool> {
    let mut bytes = [0; KEPT.len()];
    session.mem_read(memory, 0, &mut bytes)?;
    Ok(bytes == KEPT)
}

/// Acts while a neighbour's kernels run one behind the other: from before it until behind it. Returns whether all their
/// sums were right, and their number.
pub(crate) fn beside<T>(
    neighbour: &GpuSession,
    act: impl FnOnce() -> Result<T>,
) -> Result<(T, (bool, u64))> {
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut is_right = true;
            while !is_over.load(Ordering::Relaxed) {
                is_right &= adds(neighbour, COUNT, CYCLES)?;
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(is_right)
        });
        let wait_for = |more: u64| {
            let wanted = rounds.load(Ordering::Relaxed) + more;
            while rounds.load(Ordering::Relaxed) < wanted && !running.is_finished() {
                thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for(1);
        let acted = act();
        // The first of these sums may have been over before the end of the act, the second one was not.
        wait_for(2);
        is_over.store(true, Ordering::Relaxed);
        let is_right = running.join().unwrap_or_else(|panic| resume_unwind(panic));
        let is_right = is_right.context("the neighbour's kernels")?;
        Ok((acted?, (is_right, rounds.load(Ordering::Relaxed))))
    })
}
