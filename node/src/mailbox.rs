//! How everything reaches the driver: two queues, and a timer on the boot-time clock.
//!
//! What was done comes before what is asked: a cut that was made in time must not look late because
//! requests were in front of its report.
//!
//! A timer of another clock would sleep through a suspended machine's deadlines, which is why the
//! driver waits in poll(2) on an eventfd and a timerfd and not in a channel's timed receive.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
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

/// The driver's end.
#[derive(Debug)]
pub struct Mailbox<T> {
    done: Receiver<T>,
    asked: Receiver<T>,
    bell: Arc<EventFd>,
    timer: TimerFd,
}

/// Everybody else's end. Sending never blocks.
#[derive(Debug)]
pub struct Sender<T> {
    done: mpsc::Sender<T>,
    asked: mpsc::Sender<T>,
    bell: Arc<EventFd>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            done: self.done.clone(),
            asked: self.asked.clone(),
            bell: self.bell.clone(),
        }
    }
}

impl<T> Sender<T> {
    /// Hands in what is asked; `false` when the driver is gone.
    pub fn ask(&self, item: T) -> bool {
        self.asked.send(item).is_ok_and(|()| self.ring())
    }

    /// Hands in what was done, which comes before all that is asked; `false` when the driver is
    /// gone.
    pub fn done(&self, item: T) -> bool {
        self.done.send(item).is_ok_and(|()| self.ring())
    }

    /// A bell that cannot take another stroke rings already.
    fn ring(&self) -> bool {
        matches!(self.bell.write(1), Ok(_) | Err(Errno::EAGAIN))
    }
}

impl<T> Mailbox<T> {
    /// A mailbox and the way into it.
    pub fn new() -> io::Result<(Self, Sender<T>)> {
        let (tell_done, done) = mpsc::channel();
        let (ask, asked) = mpsc::channel();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Ok((
            Self {
                done,
                asked,
                bell: bell.clone(),
                timer,
            },
            Sender {
                done: tell_done,
                asked: ask,
                bell,
            },
        ))
    }

    /// Waits until something is there or the time has come; without `until`, as long as it takes.
    pub fn wait(&self, until: Option<BootTime>) -> io::Result<()> {
        self.set_timer(until)?;
        let mut ready = [
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Resets the bell; EAGAIN says that it had not rung.
        match self.bell.read() {
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

    /// What was done; never waits.
    pub fn take_done(&self) -> Option<T> {
        self.done.try_recv().ok()
    }

    /// What is asked; never waits.
    pub fn take_asked(&self) -> Option<T> {
        self.asked.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn what_was_sent_wakes_and_what_was_done_has_a_queue_of_its_own() {
        let (mailbox, sender) = Mailbox::new().unwrap();
        assert!(sender.ask(1) && sender.ask(2) && sender.done(3));
        mailbox.wait(None).unwrap();
        assert_eq!((mailbox.take_done(), mailbox.take_done()), (Some(3), None));
        assert_eq!(
            (mailbox.take_asked(), mailbox.take_asked()),
            (Some(1), Some(2))
        );
        assert_eq!(mailbox.take_asked(), None);
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
        assert!(!sender.ask(()) && !sender.done(()));
    }
}
