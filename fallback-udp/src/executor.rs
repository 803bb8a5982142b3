//! How the I/O of an admitted request is done: at once by a [`Store`], or later by the storage.

use fabricbios_wire::DataStatus;

use crate::space::{Job, Reading, Store, Writing};

/// Length of the reply's payload in bytes, or the status of a refusal.
pub(crate) type Served = Result<usize, DataStatus>;

/// Does the I/O of admitted requests.
pub(crate) trait Executor {
    /// Whether one more job can be begun.
    fn has_room(&self) -> bool;

    /// Does the job; bytes that are read go to the start of `payload`. `None`: the job is in flight.
    fn execute(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served>;
}

/// Does each job at once, with a [`Store`].
pub(crate) struct Immediate<'a, S>(pub(crate) &'a S);

/// One I/O for the storage, of a lease whose storage takes its time. Offsets count units, lengths count
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// Read into the payload of the buffer.
    Read {
        /// First unit.
        offset: u64,
        /// Length in bytes, a multiple of the unit.
        bytes: usize,
    },
    /// Write the payload of the buffer.
    Write {
        /// First unit.
        offset: u64,
        /// Length in bytes, a multiple of the unit.
        bytes: usize,
    },
    /// Make all earlier writes survive a power cut.
    Flush,
}

/// Notes the I/O that the caller has to begin.
pub(crate) struct Deferred {
    pub(crate) has_room: bool,
    pub(crate) deferred: Option<DeferredIo>,
}

/// An I/O that was noted.
#[derive(Debug)]
pub(crate) struct DeferredIo {
    pub(crate) io: Io,
    /// The bytes of a read that the reply carries.
    pub(crate) reply_range: core::ops::Range<usize>,
}

impl<S: Store> Executor for Immediate<'_, S> {
    fn has_room(&self) -> bool {
        true
    }

    fn execute(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served> {
        let done = match job {
            Job::Read(Reading {
                offset,
                bytes,
                reply_range,
            }) => {
                let read = self.0.read(offset, &mut payload[..bytes]);
                read.map(|()| bring_forward(payload, reply_range))
            }
            Job::Write(Writing { offset, bytes, .. }) => self.0.write(offset, &bytes).map(|()| 0),
            Job::Flush => self.0.flush().map(|()| 0),
        };
        Some(done.map_err(|_told_to_the_log| DataStatus::Io))
    }
}

impl Executor for Deferred {
    fn has_room(&self) -> bool {
        self.has_room
    }

    fn execute(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served> {
        let (io, reply_range) = match job {
            Job::Read(Reading {
                offset,
                bytes,
                reply_range,
            }) => (Io::Read { offset, bytes }, reply_range),
            Job::Write(Writing { offset, bytes, .. }) => {
                payload[..bytes.len()].copy_from_slice(&bytes);
                let bytes = bytes.len();
                (Io::Write { offset, bytes }, 0..0)
            }
            Job::Flush => (Io::Flush, 0..0),
        };
        self.deferred = Some(DeferredIo { io, reply_range });
        None
    }
}

/// Moves `reply_range` to the start of the payload and returns its length.
pub(crate) fn bring_forward(payload: &mut [u8], reply_range: core::ops::Range<usize>) -> usize {
    let length = reply_range.len();
    if reply_range.start > 0 {
        payload.copy_within(reply_range, 0);
    }
    length
}
