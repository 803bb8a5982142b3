//! The events for which the block daemon waits: requests on its control socket, and signals.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use super::control_socket::{ControlRequest, ControlSocket};

const ENDS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Blocks SIGTERM and SIGINT until [`EventSource`] reads them, also while a device is being attached. Call this before there
/// is a second thread: each thread inherits the mask.
pub(in crate::commands) fn hold_signals() -> io::Result<()> {
    Ok(ends().thread_block()?)
}

pub(in crate::commands) fn ends() -> SigSet {
    ENDS.into_iter().collect()
}

/// One event.
#[derive(Debug)]
pub(super) enum Event {
    Request(ControlRequest),
    /// SIGTERM or SIGINT.
    Signal(Signal),
}

/// Control socket and signals of the block daemon.
#[derive(Debug)]
pub(super) struct EventSource {
    socket: ControlSocket,
    signals: SignalFd,
}

impl EventSource {
    /// Opens the control socket at this path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self {
            signals: SignalFd::with_flags(&ends(), flags)?,
            socket: ControlSocket::open(path)?,
        })
    }

    /// Waits for the next event; `None`: none came in time.
    pub(super) fn wait(&self, at_most: Duration) -> Option<Event> {
        poll_for(&[self.socket.as_fd(), self.signals.as_fd()], at_most);
        match self.signal() {
            Some(signal) => Some(Event::Signal(signal)),
            None => self.socket.next().map(Event::Request),
        }
    }

    fn signal(&self) -> Option<Signal> {
        let told = self.signals.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(told.ssi_signo).ok()?).ok()
    }
}

/// Waits until one of the descriptors is readable, or a signal came.
pub(super) fn poll_for(sources: &[BorrowedFd<'_>], at_most: Duration) {
    let mut sources: Vec<_> = sources
        .iter()
        .map(|source| PollFd::new(*source, PollFlags::POLLIN))
        .collect();
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    poll(&mut sources, timeout).ok();
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream, thread};

    use nix::sys::signal::raise;

    use super::{
        super::control_socket::{ControlCommand, ask},
        *,
    };

    const LONG: Duration = Duration::from_secs(60);

    fn request(events: &EventSource) -> ControlRequest {
        match events.wait(LONG) {
            Some(Event::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_word_gets_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let events = EventSource::open(&path).unwrap();
        let asking = thread::spawn({
            let path = path.clone();
            move || {
                [ControlCommand::Device, ControlCommand::Detach]
                    .map(|command| ask(&path, command).unwrap())
            }
        });
        let first = request(&events);
        assert_eq!(first.command, ControlCommand::Device);
        first.answer(Ok("/dev/nvme0n1"));
        let second = request(&events);
        assert_eq!(second.command, ControlCommand::Detach);
        second.answer(Err("it is mounted\nat /mnt"));
        let expected = [
            Some(Ok("/dev/nvme0n1".to_owned())),
            Some(Err("it is mounted at /mnt".to_owned())),
        ];
        assert_eq!(asking.join().unwrap(), expected);
    }

    #[test]
    fn what_is_no_word_is_not_listened_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let events = EventSource::open(&path).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"detach everything now, please").unwrap();
        assert!(events.wait(LONG).is_none());
        assert!(events.wait(Duration::ZERO).is_none());
    }

    #[test]
    fn a_signal_to_end_is_heard_and_ends_nothing_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        hold_signals().unwrap();
        for signal in ENDS {
            // The signal is raised before the event source exists, and stays pending.
            raise(signal).unwrap();
            let events = EventSource::open(&dir.path().join("sock")).unwrap();
            let event = events.wait(LONG);
            assert!(
                matches!(event, Some(Event::Signal(told)) if told == signal),
                "{event:?}"
            );
        }
    }
}
