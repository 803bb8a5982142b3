//! The driver's inputs: three queues, and a timer on the boot-time clock.
//!
//! The driver takes the node's own notices first. Reports of providers and requests have one queue each, in which
//! tenants take turns. Only the queue of requests has a bound: nothing of the node's own may be refused. Whoever has
//! nothing in it always gets a place, so that no others fill it against them.
//!
//! The driver waits in poll(2) on an eventfd, a timerfd and the socket of the journal, because the timed receive of a std channel uses a clock
//! that stops while the machine is suspended.

use std::{
    collections::VecDeque,
    fmt, io, mem,
    os::fd::{AsFd, OwnedFd},
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

use crate::driver::fair::{FairQueue, Owner};

/// Most requests that wait for the driver, beside the first of each owner.
pub const REQUESTS_MAX: usize = 1_024;

/// Most requests of one owner that wait for the driver.
pub const REQUESTS_OF_OWNER_MAX: usize = REQUESTS_MAX / 2;

/// Most reports that wait without waking the driver.
const UNHEARD_MAX: usize = 64;

/// Why a request does not wait for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// [`REQUESTS_MAX`] requests wait, and one of this owner is among them.
    Full,
    /// [`REQUESTS_OF_OWNER_MAX`] requests of this owner wait.
    OwnerFull,
    /// The driver is gone.
    Gone,
}

/// How many items wait, and how many requests found no place since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Notices of the node itself.
    pub notices: usize,
    /// Reports of providers.
    pub reports: usize,
    /// Requests.
    pub requests: usize,
    /// See [`NoPlace::Full`].
    pub full: u64,
    /// See [`NoPlace::OwnerFull`].
    pub owner_full: u64,
}

/// The receiving end.
#[derive(Debug)]
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    /// What a thread waits for; a task waits by itself.
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    wakeup: Arc<EventFd>,
    timer: TimerFd,
}

/// The sending end. Sending never blocks.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

struct Shared<T> {
    queues: Mutex<Queues<T>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Queues<T> {
    notices: VecDeque<T>,
    reports: FairQueue<T>,
    requests: FairQueue<T>,
    /// Requests that found no place, see [`Waiting`].
    full: u64,
    owner_full: u64,
    /// The driver found the queues empty and waits, or is about to wait.
    is_waiting: bool,
    is_closed: bool,
}

impl<T> Queues<T> {
    fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.reports.is_empty() && self.requests.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        // Each change of the queues is whole, also after a panic.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the driver if it waits.
    fn wake(&self, mut queues: MutexGuard<'_, Queues<T>>) {
        let is_waiting = mem::take(&mut queues.is_waiting);
        drop(queues);
        if is_waiting {
            (self.wake)();
        }
    }
}

impl<T> Sender<T> {
    /// Sends a notice of the node itself; `false`: the driver is gone.
    pub fn notify(&self, item: T) -> bool {
        self.send(|queues| queues.notices.push_back(item))
    }

    /// Sends the report of an order for a lease of `owner`; `false`: the driver is gone.
    pub fn report(&self, owner: Owner, item: T) -> bool {
        self.send(|queues| queues.reports.push(owner, item))
    }

    /// Sends a report on which the driver acts at its next turn: it wakes the driver only if many wait.
    pub fn report_progress(&self, owner: Owner, item: T) {
        let mut queues = self.0.lock();
        if queues.is_closed {
            return;
        }
        queues.reports.push(owner, item);
        if queues.reports.len() >= UNHEARD_MAX {
            self.0.wake(queues);
        }
    }

    /// Sends a request of `owner`.
    ///
    /// # Errors
    /// There is no place for the request, which comes back, or the driver is gone.
    pub fn request(&self, owner: Owner, item: T) -> Result<(), (NoPlace, T)> {
        let mut queues = self.0.lock();
        if queues.is_closed {
            return Err((NoPlace::Gone, item));
        }
        let its = queues.requests.len_of(&owner);
        if its >= REQUESTS_OF_OWNER_MAX {
            queues.owner_full += 1;
            return Err((NoPlace::OwnerFull, item));
        }
        if its > 0 && queues.requests.len() >= REQUESTS_MAX {
            queues.full += 1;
            return Err((NoPlace::Full, item));
        }
        queues.requests.push(owner, item);
        self.0.wake(queues);
        Ok(())
    }

    fn send(&self, push: impl FnOnce(&mut Queues<T>)) -> bool {
        let mut queues = self.0.lock();
        if queues.is_closed {
            return false;
        }
        push(&mut queues);
        self.0.wake(queues);
        true
    }
}

impl Waiter {
    fn set_timer(&self, until: Option<BootTime>) -> io::Result<()> {
        let Some(until) = until else {
            return Ok(self.timer.unset()?);
        };
        // Zero would disarm the timer; one nanosecond after the boot is in the past as well.
        let at = TimeSpec::from(Duration::from_nanos(until.0.max(1)));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        Ok(self.timer.set(Expiration::OneShot(at), flags)?)
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut queues = self.shared.lock();
        queues.is_closed = true;
        let unanswered = mem::take(&mut queues.requests);
        drop(queues);
        // Their clients learn that the node is stopping.
        drop(unanswered);
    }
}

impl<T> Mailbox<T> {
    /// A mailbox and its sender.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<(Self, Sender<T>)> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wakeup = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        let to = Arc::clone(&wakeup);
        // It can only fail because the eventfd is full, and then it is readable already.
        let (mut mailbox, sender) = Self::woken_by(move || {
            to.write(1).ok();
        });
        mailbox.waiter = Some(Waiter { wakeup, timer });
        Ok((mailbox, sender))
    }

    /// A mailbox without descriptors, for a driver that is a task ([`super::Driver::run_as_task`]): `wake` is called when
    /// it waits and an item comes.
    pub fn woken_by(wake: impl Fn() + Send + Sync + 'static) -> (Self, Sender<T>) {
        let shared = Arc::new(Shared {
            queues: Mutex::new(Queues {
                notices: VecDeque::new(),
                reports: FairQueue::default(),
                requests: FairQueue::default(),
                full: 0,
                owner_full: 0,
                is_waiting: false,
                is_closed: false,
            }),
            wake: Box::new(wake),
        });
        let sender = Sender(shared.clone());
        let waiter = None;
        (Self { shared, waiter }, sender)
    }

    /// Has the next item call for the driver. `false`: there is one already.
    pub fn begin_to_wait(&self) -> bool {
        let mut queues = self.shared.lock();
        queues.is_waiting = queues.is_empty();
        queues.is_waiting
    }

    /// Waits for an item, until the time `until`, or until `also` is readable.
    ///
    /// # Errors
    /// The timer or the wait fails, which cannot happen while the descriptors are open, or the mailbox is a task's.
    pub fn wait(&self, until: Option<BootTime>, also: Option<&OwnedFd>) -> io::Result<()> {
        let Some(waiter) = &self.waiter else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if !self.begin_to_wait() {
            return Ok(());
        }
        waiter.set_timer(until)?;
        let wakeup = waiter.wakeup.as_fd();
        // Without `also`, one of the others stands twice.
        let also = also.map_or(wakeup, AsFd::as_fd);
        let mut ready =
            [wakeup, waiter.timer.as_fd(), also].map(|it| PollFd::new(it, PollFlags::POLLIN));
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Resets the eventfd; EAGAIN: nobody has written to it.
        match waiter.wakeup.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next notice of the node itself; never waits.
    pub fn take_notice(&self) -> Option<T> {
        self.shared.lock().notices.pop_front()
    }

    /// The next report, of the owner who has the turn; never waits.
    pub fn take_report(&self) -> Option<T> {
        self.shared.lock().reports.pop()
    }

    /// The next request, of the owner who has the turn; never waits.
    pub fn take_request(&self) -> Option<T> {
        self.shared.lock().requests.pop()
    }

    /// What waits now.
    pub fn waiting(&self) -> Waiting {
        let queues = self.shared.lock();
        Waiting {
            notices: queues.notices.len(),
            reports: queues.reports.len(),
            requests: queues.requests.len(),
            full: queues.full,
            owner_full: queues.owner_full,
        }
    }

    /// True if all queues are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.lock().is_empty()
    }

    /// The least value that `look` returns for the first report of each owner; reports of one owner are in order.
    pub fn least_of_reports<R: Ord>(&self, look: impl Fn(&T) -> Option<R>) -> Option<R> {
        self.shared.lock().reports.heads().filter_map(look).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::process::clock;

    #[test]
    fn what_was_sent_wakes_and_each_sort_has_a_queue_of_its_own() {
        let (mailbox, sender) = Mailbox::new().unwrap();
        let (a, b): (Owner, Owner) = (Some("a".into()), Some("b".into()));
        for (owner, n) in [(&a, 1), (&a, 2), (&b, 3)] {
            sender.request(owner.clone(), n).unwrap();
        }
        assert!(sender.notify(4) && sender.report(a, 6) && sender.report(b, 5));
        mailbox.wait(None, None).unwrap();
        assert_eq!(mailbox.least_of_reports(|n| Some(*n)), Some(5));
        assert_eq!(
            (mailbox.take_notice(), mailbox.take_notice()),
            (Some(4), None)
        );
        let asked: Vec<i32> = std::iter::from_fn(|| mailbox.take_request()).collect();
        assert_eq!(asked, [1, 3, 2]);
        assert!(!mailbox.is_empty());
        let reports: Vec<i32> = std::iter::from_fn(|| mailbox.take_report()).collect();
        assert_eq!((reports, mailbox.is_empty()), (vec![6, 5], true));
    }

    #[test]
    fn progress_wakes_nobody_until_many_reports_wait() {
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let (mailbox, sender) = Mailbox::woken_by(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(mailbox.begin_to_wait());
        sender.report_progress(None, 1);
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        assert!(!mailbox.begin_to_wait(), "the driver's next turn has it");
        assert_eq!(mailbox.take_report(), Some(1));
        assert!(mailbox.begin_to_wait());
        sender.report_progress(None, 2);
        sender.report(None, 3);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        let in_order = [mailbox.take_report(), mailbox.take_report()];
        assert_eq!(in_order, [Some(2), Some(3)]);
        assert!(mailbox.begin_to_wait());
        (0..UNHEARD_MAX).for_each(|_| sender.report_progress(None, 4));
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_deadline_that_has_passed_does_not_wait() {
        let (mailbox, _sender) = Mailbox::<()>::new().unwrap();
        mailbox.wait(Some(BootTime(0)), None).unwrap();
        mailbox.wait(Some(clock::now().boot), None).unwrap();
    }

    #[test]
    fn a_deadline_is_never_early() {
        let (mailbox, _sender) = Mailbox::<()>::new().unwrap();
        let until = clock::now().boot + Duration::from_millis(20);
        mailbox.wait(Some(until), None).unwrap();
        assert!(clock::now().boot >= until);
    }

    #[test]
    fn a_mailbox_that_is_gone_says_so() {
        let (mailbox, sender) = Mailbox::new().unwrap();
        let waits = Arc::new(());
        sender.request(None, waits.clone()).unwrap();
        drop(mailbox);
        assert_eq!(Arc::strong_count(&waits), 1);
        let refused = sender.request(None, waits.clone());
        assert_eq!(refused, Err((NoPlace::Gone, waits.clone())));
        assert!(!sender.notify(waits.clone()) && !sender.report(None, waits));
    }
}
