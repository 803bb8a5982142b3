//! Kernels that access an address that belongs to nobody.

use anyhow::{Context, Result};
use fabricbios_client::{Error, GpuLease, GpuSession, wire::LeaseError};

use crate::{
    Arguments,
    kernels::adds,
    node::Daemon,
    report::Report,
    scenarios::{check_device, lease},
    shared::{beside, is_kept, keep, share},
};

/// PTX of a kernel that writes to such an address.
const FAULT: &[u8] = include_bytes!("../../stand-ins/ptx/fault.ptx");
/// Numbers of each sum.
const COUNT: u32 = 10_007;

/// A fault on a device that a lease has alone.
pub(crate) fn alone(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let tenant = daemon.tenant("blue")?;
    let held = lease(&tenant, 60)?;
    let session = GpuSession::new(&held)?;
    let fault = fault(&session)?;
    over("fault", &held, &session, &fault, report)?;
    held.free()?;
    let next = lease(&daemon.tenant("red")?, 60)?;
    let is_right = adds(&GpuSession::new(&next)?, COUNT, 0)?;
    report.check("fault: the next lease computes", is_right, "");
    next.free()?;
    check_device("fault: the device goes on", daemon, report)
}

/// A fault beside a neighbour's kernels.
pub(crate) fn beside_another(
    _: &Arguments,
    daemon: &mut Daemon,
    report: &mut Report,
) -> Result<()> {
    let blue = share(&daemon.tenant("blue")?)?;
    let neighbour = GpuSession::new(&blue)?;
    let kept = keep(&neighbour)?;
    let red = share(&daemon.tenant("red")?)?;
    let session = GpuSession::new(&red)?;
    let (fault, (is_right, rounds)) = beside(&neighbour, || fault(&session))?;
    report.check(
        "shared fault: the neighbour's kernels go on and end right, in the same session",
        is_right && is_kept(&neighbour, &kept)?,
        format!("{rounds} sums"),
    );
    over("shared fault", &red, &session, &fault, report)?;
    red.free()?;
    let is_right = adds(&neighbour, COUNT, 0)? && is_kept(&neighbour, &kept)?;
    report.check(
        "shared fault: the neighbour goes on behind the end of that lease",
        is_right,
        "",
    );
    blue.free()?;
    lease(&daemon.tenant("green")?, 60)?.free()?;
    check_device("shared fault: the device goes on", daemon, report)
}

/// Launches the kernel and waits for it. Returns the error.
fn fault(session: &GpuSession) -> Result<Error> {
    let module = session.module_load(FAULT)?;
    let launched = session.launch(&module, "fault", [1; 3], [1; 3], 0, &[]);
    let error = launched.and_then(|()| session.sync()).err();
    error.context("a kernel that writes to an address of nobody ends without an error")
}

/// Records what has become of the session, and that the same lease gets another one.
fn over(
    name: &str,
    lease: &GpuLease,
    session: &GpuSession,
    fault: &Error,
    report: &mut Report,
) -> Result<()> {
    let refusal = fault.refusal();
    let is_named = refusal.is_some_and(|it| {
        it.error == LeaseError::InvalidArgs && it.message.contains("ILLEGAL_ADDRESS")
    });
    report.check(
        &format!("{name}: the tenant is told the driver's name of the fault"),
        is_named,
        fault,
    );
    let after = session.mem_alloc(1);
    report.check(
        &format!("{name}: its session is over"),
        after.is_err(),
        format!("{:?}", after.err()),
    );
    let another = GpuSession::new(lease)?;
    let is_right = another.id() != session.id() && adds(&another, COUNT, 0)?;
    report.check(
        &format!("{name}: another session of the same lease computes"),
        is_right,
        "",
    );
    Ok(())
}
