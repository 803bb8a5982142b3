//! What a keeper hears while it waits: questions, and signals to end.

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

use super::socket::{Asked, Door};

const ENDS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Lets signals to end wait until they are heard, also while a device is still being made. To be called
/// before there is a second thread: each inherits this.
pub(in crate::commands) fn hold_signals() -> io::Result<()> {
    Ok(ends().thread_block()?)
}

fn ends() -> SigSet {
    ENDS.into_iter().collect()
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    Asked(Asked),
    /// SIGTERM or SIGINT.
    ToEnd(Signal),
}

/// Where a keeper hears.
#[derive(Debug)]
pub(super) struct Ears {
    door: Door,
    signals: SignalFd,
}

impl Ears {
    /// With a socket at this path.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self {
            signals: SignalFd::with_flags(&ends(), flags)?,
            door: Door::open(path)?,
        })
    }

    /// What comes first, if it comes in time.
    pub(super) fn wait(&self, at_most: Duration) -> Option<Heard> {
        poll_for([self.door.as_fd(), self.signals.as_fd()], at_most);
        match self.signal() {
            Some(signal) => Some(Heard::ToEnd(signal)),
            None => self.door.next().map(Heard::Asked),
        }
    }

    fn signal(&self) -> Option<Signal> {
        let told = self.signals.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(told.ssi_signo).ok()?).ok()
    }
}

/// Until there is something at one of them. Whoever waits looks for itself.
fn poll_for<const N: usize>(sources: [BorrowedFd<'_>; N], at_most: Duration) {
    let mut sources = sources.map(|source| PollFd::new(source, PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    poll(&mut sources, timeout).ok();
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream, thread};

    use nix::sys::signal::raise;

    use super::{
        super::socket::{Word, ask},
        *,
    };

    const LONG: Duration = Duration::from_secs(60);

    fn asked(ears: &Ears) -> Asked {
        match ears.wait(LONG) {
            Some(Heard::Asked(asked)) => asked,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_word_gets_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let ears = Ears::open(&path).unwrap();
        let asking = thread::spawn({
            let path = path.clone();
            move || [Word::Device, Word::Detach].map(|word| ask(&path, word).unwrap())
        });
        let first = asked(&ears);
        assert_eq!(first.word, Word::Device);
        first.answer(Ok("/dev/nvme0n1"));
        let second = asked(&ears);
        assert_eq!(second.word, Word::Detach);
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
        let ears = Ears::open(&path).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"detach everything now, please").unwrap();
        assert!(ears.wait(LONG).is_none());
        assert!(ears.wait(Duration::ZERO).is_none());
    }

    #[test]
    fn a_signal_to_end_is_heard_and_ends_nothing_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        hold_signals().unwrap();
        for signal in ENDS {
            // It is there before anybody listens, and waits.
            raise(signal).unwrap();
            let ears = Ears::open(&dir.path().join("sock")).unwrap();
            let heard = ears.wait(LONG);
            assert!(
                matches!(heard, Some(Heard::ToEnd(told)) if told == signal),
                "{heard:?}"
            );
        }
    }
}
