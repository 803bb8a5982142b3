//! The events for which the block daemon waits: requests on its control socket, and signals.

use std::{io, os::fd::AsFd, path::Path, time::Duration};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::{
    control_socket::{ControlRequest, ControlSocket},
    wait::poll_for,
};

/// One event.
#[derive(Debug)]
pub(crate) enum Event {
    Request(ControlRequest),
    /// A signal that ends the daemon.
    Signal(Signal),
}

/// Control socket and signals of the block daemon.
#[derive(Debug)]
pub(crate) struct EventSource {
    socket: ControlSocket,
    signals: SignalFd,
}

impl EventSource {
    /// Opens the control socket at this path. `ends`: the signals that end the daemon, which the process has blocked.
    pub(crate) fn open(path: &Path, ends: &SigSet) -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self {
            signals: SignalFd::with_flags(ends, flags)?,
            socket: ControlSocket::open(path)?,
        })
    }

    /// Waits for the next event; `None`: none came in time.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Event> {
        poll_for(&[self.socket.as_fd(), self.signals.as_fd()], at_most);
        match self.signal() {
            Some(signal) => Some(Event::Signal(signal)),
            None => self.socket.next().map(Event::Request),
        }
    }

    fn signal(&self) -> Option<Signal> {
        let signal = self.signals.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(signal.ssi_signo).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream, thread};

    use nix::sys::signal::raise;

    use super::*;
    use crate::control_socket::{ControlCommand, ask};

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
        let events = EventSource::open(&path, &SigSet::empty()).unwrap();
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
        let events = EventSource::open(&path, &SigSet::empty()).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"detach everything now, please").unwrap();
        assert!(events.wait(LONG).is_none());
        assert!(events.wait(Duration::ZERO).is_none());
    }

    #[test]
    fn a_signal_to_end_is_heard_and_ends_nothing_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let ends = [Signal::SIGTERM, Signal::SIGINT];
        let set: SigSet = ends.into_iter().collect();
        set.thread_block().unwrap();
        for signal in ends {
            // The signal is raised before the event source exists, and stays pending.
            raise(signal).unwrap();
            let events = EventSource::open(&dir.path().join("sock"), &set).unwrap();
            let event = events.wait(LONG);
            assert!(
                matches!(event, Some(Event::Signal(read)) if read == signal),
                "{event:?}"
            );
        }
    }
}
