//! Operations that were sent and not waited for: launches and copies to the device. Their failure is kept for the next call
//! that waits.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fabricbios_wire::{Header, Refusal};

/// Most operations of a queue that were sent and not answered. One more waits for the first answer.
pub(super) const AHEAD_MAX: usize = 128;

/// What was sent ahead.
#[derive(Debug)]
pub(super) enum What {
    Launch { kernel: String },
    Copy { offset: u64, bytes: usize },
}

/// An operation that is not answered.
#[derive(Debug)]
struct Sent {
    header: Header,
    what: What,
    /// Counts from 1 after each call that waits.
    number: u64,
}

/// Why an operation that was sent ahead has failed.
#[derive(Debug)]
pub(super) enum Failure {
    Refused(Refusal),
    /// Nobody knows whether it was done.
    Unanswered(String),
}

/// What a queue remembers of operations that were sent ahead.
#[derive(Debug, Default)]
pub(super) struct Kept {
    unanswered: AtomicUsize,
    since: Mutex<Since>,
}

/// Since the last call that waits.
#[derive(Debug, Default)]
struct Since {
    sent: u64,
    /// The first failure.
    failure: Option<Failure>,
}

/// The operations of one stream that are not answered, in their order. If the stream is dropped before their answers come,
/// that is their failure.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    sent: VecDeque<Sent>,
    kept: Arc<Kept>,
}

impl Kept {
    /// Whether an operation is not answered.
    pub(super) fn is_ahead(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) > 0
    }

    /// The first failure since the last call, if there was one; the count begins again.
    pub(super) fn take(&self) -> Option<Failure> {
        std::mem::take(&mut *self.since()).failure
    }

    fn keep(&self, failure: Failure) {
        self.since().failure.get_or_insert(failure);
    }

    /// A panic under the lock leaves a complete state.
    fn since(&self) -> MutexGuard<'_, Since> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unanswered {
    pub(super) fn new(kept: Arc<Kept>) -> Self {
        let sent = VecDeque::new();
        Self { sent, kept }
    }

    pub(super) fn push(&mut self, header: Header, what: What) {
        let mut since = self.kept.since();
        since.sent += 1;
        let number = since.sent;
        drop(since);
        self.kept.unanswered.fetch_add(1, Ordering::AcqRel);
        self.sent.push_back(Sent {
            header,
            what,
            number,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// The header of the operation that is answered next.
    pub(super) fn next(&self) -> Option<Header> {
        self.sent.front().map(|it| it.header)
    }

    /// The next operation was answered.
    pub(super) fn answered(&mut self, refused: Option<Refusal>) {
        let Some(sent) = self.sent.pop_front() else {
            return;
        };
        self.kept.unanswered.fetch_sub(1, Ordering::AcqRel);
        if let Some(mut refusal) = refused {
            refusal.message = format!("{sent}: {}", refusal.message);
            self.kept.keep(Failure::Refused(refusal));
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(first) = self.sent.front() else {
            return;
        };
        let count = self.sent.len();
        let why = format!(
            "the stream was lost before {first} and {} operations behind it were answered: they may have been done or not",
            count - 1
        );
        self.kept.keep(Failure::Unanswered(why));
        self.kept.unanswered.fetch_sub(count, Ordering::AcqRel);
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Launch { kernel } => write!(to, "the launch of kernel {kernel:?}")?,
            What::Copy { offset, bytes } => {
                write!(to, "the copy of {bytes} bytes to offset {offset}")?;
            }
        }
        write!(to, " (operation {} since the last sync)", self.number)
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{LeaseError, RefusalClass};

    use super::*;

    fn sent(kept: &Arc<Kept>, kernels: &[&str]) -> Unanswered {
        let mut unanswered = Unanswered::new(Arc::clone(kept));
        for kernel in kernels {
            let kernel = (*kernel).to_owned();
            unanswered.push(Header::default(), What::Launch { kernel });
        }
        unanswered
    }

    #[test]
    fn the_first_failure_is_kept_and_told_once() {
        let kept = Arc::new(Kept::default());
        let mut unanswered = sent(&kept, &["a", "b", "c"]);
        let refusal = |why| Refusal::new(LeaseError::NotFound, RefusalClass::Permanent, why);
        unanswered.answered(None);
        unanswered.answered(Some(refusal("no such kernel")));
        unanswered.answered(Some(refusal("neither")));
        assert!(!kept.is_ahead());
        let Some(Failure::Refused(told)) = kept.take() else {
            panic!("nothing was kept")
        };
        let expected =
            "the launch of kernel \"b\" (operation 2 since the last sync): no such kernel";
        assert_eq!(told.message, expected);
        assert!(kept.take().is_none());
    }

    #[test]
    fn what_a_lost_stream_leaves_unanswered_has_failed() {
        let kept = Arc::new(Kept::default());
        let mut unanswered = sent(&kept, &["a", "b", "c"]);
        unanswered.answered(None);
        assert!(kept.is_ahead());
        drop(unanswered);
        assert!(!kept.is_ahead());
        let Some(Failure::Unanswered(why)) = kept.take() else {
            panic!("nothing was kept")
        };
        assert!(why.contains("kernel \"b\" (operation 2"), "{why}");
        assert!(why.contains("and 1 operations behind it"), "{why}");
        drop(sent(&kept, &[]));
        assert!(kept.take().is_none());
    }
}
