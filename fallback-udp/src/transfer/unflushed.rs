//! Writes that a power cut of the node would take, and whether one did: NFS's write verifier
//! (RFC 1813, sections 3.3.7 and 3.3.21).
//!
//! A FLUSH is done in the session that its answer is for, and no session outlives the run of the machine that
//! opened it. So it is enough to look at the verifier of each new session.

use super::Failure;

/// What was answered and is not durable yet, as far as one client knows.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// Of the last session; `None`: there was none.
    verifier: Option<u64>,
    /// Requests to write that were answered OK, and how many of them, the first ones, are durable or given up
    /// for lost.
    written: u64,
    settled: u64,
    /// Times that some were lost, and how many of those a flush has reported.
    losses: u64,
    reported: u64,
}

/// What a flush stands for: everything up to when it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    written: u64,
    reported: u64,
}

impl Unflushed {
    /// A request to write was answered OK.
    pub(super) fn written(&mut self) {
        self.written += 1;
    }

    /// A flush is asked for now.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            written: self.written,
            reported: self.reported,
        }
    }

    /// A session was opened: under another verifier than the last one, what was not durable may be lost.
    pub(super) fn opened(&mut self, verifier: u64) {
        let last = self.verifier.replace(verifier);
        let is_another_run = last.is_some_and(|last| last != verifier);
        if is_another_run && self.written > self.settled {
            self.losses += 1;
            self.settled = self.written;
        }
    }

    /// A flush was answered OK. Of a loss every flush is told that was asked for before one had reported it:
    /// each of them stands for writes that may be gone.
    pub(super) fn flushed(&mut self, mark: Mark) -> Result<(), Failure> {
        self.settled = self.settled.max(mark.written);
        if mark.reported == self.losses {
            return Ok(());
        }
        self.reported = self.losses;
        Err(Failure::WritesLost)
    }

    /// Whether a flush would change nothing, and say nothing.
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
    fn what_was_answered_and_not_flushed_is_lost_with_the_run_of_the_machine() {
        let mut unflushed = told(1);
        unflushed.written();
        unflushed.opened(1);
        assert_eq!(
            unflushed.flushed(unflushed.mark()),
            Ok(()),
            "only the daemon was started anew"
        );
        unflushed.opened(2);
        assert_eq!(
            unflushed.flushed(unflushed.mark()),
            Ok(()),
            "all was flushed"
        );
        unflushed.written();
        unflushed.opened(3);
        assert!(!unflushed.is_empty());
        let lost = Err(Failure::WritesLost);
        assert_eq!(unflushed.flushed(unflushed.mark()), lost);
        assert_eq!(
            unflushed.flushed(unflushed.mark()),
            Ok(()),
            "it is told once"
        );
        assert!(unflushed.is_empty());
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

    #[test]
    fn every_flush_that_was_asked_for_before_the_loss_was_told_fails() {
        let mut unflushed = told(1);
        unflushed.written();
        let marks = [unflushed.mark(), unflushed.mark()];
        unflushed.opened(2);
        for mark in marks {
            assert_eq!(unflushed.flushed(mark), Err(Failure::WritesLost));
        }
    }
}
