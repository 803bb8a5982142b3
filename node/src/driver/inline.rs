//! Work that the driver's own thread does, because no step of it waits for anything.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fabricbios_lease::Report;

/// Carries out an order on this thread. `None`: it has no report, or it panicked, and the table fences or takes back what
/// comes too late.
pub(super) fn call(work: impl FnOnce() -> Option<Report>) -> Option<Report> {
    #[cfg(debug_assertions)]
    let _timed = timed::Call::begin();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_panic| {
        tracing::error!(
            "an order panicked in the driver: a cut or release is fenced as overdue; a bind is taken back"
        );
        None
    })
}

/// Debug builds measure each call by the processor time of the thread, which other threads of the machine do not add to.
#[cfg(debug_assertions)]
pub(super) mod timed {
    use std::{cell::Cell, time::Duration};

    use nix::time::{ClockId, clock_gettime};

    /// Most processor time of one call, in a debug build on an emulated processor.
    const AT_MOST: Duration = Duration::from_millis(20);

    /// The calls of a thread.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Calls {
        pub(crate) count: u64,
        pub(crate) longest: Duration,
    }

    thread_local! {
        static CALLS: Cell<Calls> = Cell::default();
    }

    pub(super) struct Call(Duration);

    impl Call {
        pub(super) fn begin() -> Self {
            Self(processor_time())
        }
    }

    impl Drop for Call {
        fn drop(&mut self) {
            let took = processor_time().saturating_sub(self.0);
            if took > AT_MOST {
                let ms = took.as_millis();
                tracing::warn!(ms, "an order kept the driver from its other work");
            }
            let before = CALLS.get();
            CALLS.set(Calls {
                count: before.count + 1,
                longest: before.longest.max(took),
            });
        }
    }

    /// The calls of this thread.
    #[cfg(test)]
    pub(crate) fn calls() -> Calls {
        CALLS.get()
    }

    fn processor_time() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }
}
