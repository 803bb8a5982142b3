//! The writes that are not flushed, and whether a reboot of the node may have lost some: NFS's write verifier
//! (RFC 1813, sections 3.3.7 and 3.3.21).
//!
//! A FLUSH is answered in the session in which it was sent, and no session survives a reboot of the node. So it is enough
//! to compare the verifier of each new session.

use super::Failure;

/// The answered writes of one client that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// Verifier of the last session; `None`: there was none.
    verifier: Option<u64>,
    /// Number of writes that were answered OK, and how many of them, from the first on, are durable or reported as
    /// lost.
    written: u64,
    settled: u64,
    /// Number of losses, and how many of them a flush has reported.
    losses: u64,
    reported: u64,
}

/// The point in the sequence of writes up to which a flush makes them durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    written: u64,
    reported: u64,
}

impl Unflushed {
    /// Records that a write was answered OK.
    pub(super) fn written(&mut self) {
        self.written += 1;
    }

    /// The mark of a flush that is submitted now.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            written: self.written,
            reported: self.reported,
        }
    }

    /// Records a new session. If its verifier differs from the last one, unflushed writes may be lost.
    pub(super) fn opened(&mut self, verifier: u64) {
        let last = self.verifier.replace(verifier);
        let is_another_run = last.is_some_and(|last| last != verifier);
        if is_another_run && self.written > self.settled {
            self.losses += 1;
            self.settled = self.written;
        }
    }

    /// Records that a flush was answered OK. Every flush that was submitted before the first report of a loss reports
    /// the loss too, because each of them covers writes that may be lost.
    pub(super) fn flushed(&mut self, mark: Mark) -> Result<(), Failure> {
        self.settled = self.settled.max(mark.written);
        if mark.reported == self.losses {
            return Ok(());
        }
        self.reported = self.losses;
        Err(Failure::WritesLost)
    }

    /// Whether all writes are durable and all losses reported, so that a flush is not needed.
    pub(super) fn is_empty(&self) -> bool {
        self.settled == self.written && self.reported == self.losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(verifier: u64) -> Unflushed {
        let mut unflushed = Unflushed::default();
        unflushed.opened(verifier);
        unflushed
    }

    #[test]
    fn a_flush_stands_for_no_write_that_was_answered_after_it_was_asked_for() {
        let mut unflushed = told(1);
        unflushed.written();
        let mark = unflushed.mark();
        unflushed.written();
        assert_eq!(unflushed.flushed(mark), Ok(()));
        assert!(!unflushed.is_empty());
        unflushed.opened(2);
        let lost = Err(Failure::WritesLost);
        assert_eq!(unflushed.flushed(unflushed.mark()), lost);
    }
}
