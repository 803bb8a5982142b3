//! How everything reaches the driver: three queues, and a timer on the boot-time clock.
//!
//! What the node itself says comes first. Reports of backends and requests have a queue each, in which tenants take
//! turns, so that the driver can serve both alike however much of one tenant's waits.
//!
//! A timer of another clock would sleep through a suspended machine's deadlines, which is why the
//! driver waits in poll(2) on an eventfd and a timerfd and not in a channel's timed receive.

use std::{
    collections::VecDeque,
    io, mem,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_lease::BootTime;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
};

use crate::fair::{FairQueue, Owner};

/// The driver's end.
#[derive(Debug)]
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    timer: TimerFd,
}

/// Everybody else's end. Sending never blocks.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    queues: Mutex<Queues<T>>,
    bell: EventFd,
}

#[derive(Debug)]
struct Queues<T> {
    own: VecDeque<T>,
    reports: FairQueue<T>,
    asked: FairQueue<T>,
    /// The driver has found nothing, and waits for the bell or is about to.
    is_waiting: bool,
    is_closed: bool,
}

impl<T> Queues<T> {
    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.reports.is_empty() && self.asked.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        // Nothing panics between two whole changes.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Hands in what the node itself says; `false` when the driver is gone.
    pub fn done(&self, item: T) -> bool {
        self.send(|queues| queues.own.push_back(item))
    }

    /// Hands in what came of an order for the owner's lease; `false` when the driver is gone.
    pub fn report(&self, owner: Owner, item: T) -> bool {
        self.send(|queues| queues.reports.push(owner, item))
    }

    /// Hands in what the owner asks; `false` when the driver is gone.
    pub fn ask(&self, owner: Owner, item: T) -> bool {
        self.send(|queues| queues.asked.push(owner, item))
    }

    fn send(&self, push: impl FnOnce(&mut Queues<T>)) -> bool {
        let mut queues = self.0.lock();
        if queues.is_closed {
            return false;
        }
        push(&mut queues);
        let is_waiting = mem::take(&mut queues.is_waiting);
        drop(queues);
        // A bell that cannot take another stroke rings already.
        !is_waiting || matches!(self.0.bell.write(1), Ok(_) | Err(Errno::EAGAIN))
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
    }
}

impl<T> Mailbox<T> {
    /// A mailbox and the way into it.
    pub fn new() -> io::Result<(Self, Sender<T>)> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let shared = Arc::new(Shared {
            queues: Mutex::new(Queues {
                own: VecDeque::new(),
                reports: FairQueue::default(),
                asked: FairQueue::default(),
                is_waiting: false,
                is_closed: false,
            }),
            bell: EventFd::from_value_and_flags(0, flags)?,
        });
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let sender = Sender(shared.clone());
        Ok((Self { shared, timer }, sender))
    }

    /// Waits until something is there or the time has come; without `until`, as long as it takes.
    pub fn wait(&self, until: Option<BootTime>) -> io::Result<()> {
        {
            let mut queues = self.shared.lock();
            if !queues.is_empty() {
                return Ok(());
            }
            queues.is_waiting = true;
        }
        self.set_timer(until)?;
        let mut ready = [
            PollFd::new(self.shared.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Resets the bell; EAGAIN says that it had not rung.
        match self.shared.bell.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn set_timer(&self, until: Option<BootTime>) -> io::Result<()> {
        let Some(until) = until else {
            return Ok(self.timer.unset()?);
        };
        // Zero would disarm it; a nanosecond after the boot is as much in the past.
        let at = TimeSpec::from(Duration::from_nanos(until.0.max(1)));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        Ok(self.timer.set(Expiration::OneShot(at), flags)?)
    }

    /// What the node itself says; never waits.
    pub fn take_done(&self) -> Option<T> {
        self.shared.lock().own.pop_front()
    }

    /// What came of an order, of the owner whose turn it is; never waits.
    pub fn take_report(&self) -> Option<T> {
        self.shared.lock().reports.pop()
    }

    /// What is asked, of the owner whose turn it is; never waits.
    pub fn take_asked(&self) -> Option<T> {
        self.shared.lock().asked.pop()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.lock().is_empty()
    }

    /// The least of what `look` finds in the reports that wait; within one owner they come in order.
    pub fn least_of_reports<R: Ord>(&self, look: impl Fn(&T) -> Option<R>) -> Option<R> {
        self.shared.lock().reports.heads().filter_map(look).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn what_was_sent_wakes_and_each_sort_has_a_queue_of_its_own() {
        let (mailbox, sender) = Mailbox::new().unwrap();
        let (a, b): (Owner, Owner) = (Some("a".into()), Some("b".into()));
        assert!(sender.ask(a.clone(), 1) && sender.ask(a.clone(), 2) && sender.ask(b.clone(), 3));
        assert!(sender.done(4) && sender.report(a, 6) && sender.report(b, 5));
        mailbox.wait(None).unwrap();
        assert_eq!(mailbox.least_of_reports(|n| Some(*n)), Some(5));
        assert_eq!((mailbox.take_done(), mailbox.take_done()), (Some(4), None));
        let asked: Vec<i32> = std::iter::from_fn(|| mailbox.take_asked()).collect();
        assert_eq!(asked, [1, 3, 2]);
        assert!(!mailbox.is_empty());
        let reports: Vec<i32> = std::iter::from_fn(|| mailbox.take_report()).collect();
        assert_eq!((reports, mailbox.is_empty()), (vec![6, 5], true));
    }

    #[test]
    fn a_deadline_that_has_passed_does_not_wait() {
        let (mailbox, _sender) = Mailbox::<()>::new().unwrap();
        mailbox.wait(Some(BootTime(0))).unwrap();
        mailbox.wait(Some(clock::now().boot)).unwrap();
    }

    #[test]
    fn a_deadline_is_never_early() {
        let (mailbox, _sender) = Mailbox::<()>::new().unwrap();
        let until = clock::now().boot + Duration::from_millis(20);
        mailbox.wait(Some(until)).unwrap();
        assert!(clock::now().boot >= until);
    }

    #[test]
    fn a_mailbox_that_is_gone_says_so() {
        let (mailbox, sender) = Mailbox::new().unwrap();
        drop(mailbox);
        assert!(!sender.ask(None, ()) && !sender.done(()) && !sender.report(None, ()));
    }
}
