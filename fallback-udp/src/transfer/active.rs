//! One operation on blocks that has not finished.

use super::{Failure, Operation, blocks::Finished, operation::Reach, unflushed::Mark};

/// An operation that has not finished.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) operation: Operation,
    /// The blocks that the operation touches; `None`: not checked yet.
    pub(super) reach: Option<Reach>,
    /// Number of earlier operations that this operation waits for.
    pub(super) behind: usize,
    /// Number of bytes whose replies came.
    pub(super) done: usize,
    pub(super) failure: Option<Failure>,
    /// Number of writes before its submission, for FLUSH.
    pub(super) mark: Mark,
}

impl Active {
    pub(super) fn new(operation: Operation, mark: Mark) -> Self {
        Self {
            operation,
            reach: None,
            behind: 0,
            done: 0,
            failure: None,
            mark,
        }
    }

    /// Whether this operation and another one must not run at the same time.
    pub(super) fn conflicts(&self, reach: &Reach) -> bool {
        let mine = self.reach.as_ref();
        mine.is_some_and(|mine| mine.conflicts(reach))
    }

    pub(super) fn finished(self, id: u64, outcome: Result<(), Failure>) -> Finished {
        let done = match self.operation {
            Operation::Open | Operation::Flush => 0,
            _ => self.done as u64,
        };
        Finished {
            id,
            operation: self.operation,
            done,
            outcome,
        }
    }
}
