//! Keeps bus mastering off during the part of an end that waits for others.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

pub(super) use fabricbios_cgroup::Endings;
use fabricbios_lease::StepError;
use fabricbios_wire::PciFunction;

use super::pci::Pci;

/// Interval at which bus mastering is switched off while a holder or a driver may switch it on.
const OFF_EVERY: Duration = Duration::from_millis(3);

/// The pause is at least this many times as long as switching off took.
const PAUSES: u32 = 4;

/// `Ok`: the finding, for people.
pub(super) type Outcome = Result<String, StepError>;

/// Runs `work`. Meanwhile switches bus mastering off repeatedly, and once more afterwards.
pub(super) fn kept_off<T: Send>(
    pci: &Pci,
    function: PciFunction,
    work: impl FnOnce() -> T + Send,
) -> T {
    let (over, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let keep = move || {
            let mut pause = OFF_EVERY;
            while is_over.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                let began = Instant::now();
                pci.keep_off(function);
                // An emulated card is slow, and `work` needs the processor too.
                pause = OFF_EVERY.max(began.elapsed() * PAUSES);
            }
            pci.keep_off(function);
        };
        let thread = thread::Builder::new().name("bus master off".into());
        if let Err(error) = thread.spawn_scoped(scope, keep) {
            tracing::error!(%function, %error, "bus mastering is not kept off: no thread can be started");
        }
        let done = work();
        drop(over);
        done
    })
}
