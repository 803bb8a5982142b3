//! Who does what a desk has let pass: a store at once, or somebody else later.

use fabricbios_wire::DataStatus;

use crate::space::{Job, Reading, Store, StoreFailed, Writing};

/// Bytes of payload, or why there are none.
pub(crate) type Served = Result<usize, DataStatus>;

/// See the module.
pub(crate) trait Hands {
    /// Whether something more can be taken.
    fn has_room(&self) -> bool;

    /// Does it; what is read goes to the start of `payload`. `None`: it is under way.
    fn take(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served>;
}

/// A store that is done with everything at once.
pub(crate) struct AtOnce<'a, S>(pub(crate) &'a S);

/// Something to be done with the storage, of a lease whose spaces are not done at once. Offsets in
/// units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// So many bytes from there, to the payload of the buffer.
    Read {
        /// First unit.
        offset: u64,
        /// Whole units.
        bytes: usize,
    },
    /// The bytes in the payload of the buffer.
    Write {
        /// First unit.
        offset: u64,
        /// Whole units.
        bytes: usize,
    },
    /// What was written before survives a power cut.
    Flush,
}

/// Notes what is to be done.
pub(crate) struct Later {
    pub(crate) has_room: bool,
    pub(crate) taken: Option<Taken>,
}

/// What was noted.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) io: Io,
    /// Which of the bytes that are read the reply has.
    pub(crate) told: core::ops::Range<usize>,
}

impl<S: Store> Hands for AtOnce<'_, S> {
    fn has_room(&self) -> bool {
        true
    }

    fn take(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served> {
        let done = match job {
            Job::Read(reading) => self.read(reading, payload),
            Job::Write(Writing { offset, bytes, .. }) => self.0.write(offset, &bytes).map(|()| 0),
            Job::Flush => self.0.flush().map(|()| 0),
        };
        Some(done.map_err(|_told_to_the_log| DataStatus::Io))
    }
}

impl<S: Store> AtOnce<'_, S> {
    fn read(&self, reading: Reading, payload: &mut [u8]) -> Result<usize, StoreFailed> {
        let Reading {
            offset,
            bytes,
            told,
        } = reading;
        self.0.read(offset, &mut payload[..bytes])?;
        Ok(bring_forward(payload, told))
    }
}

impl Hands for Later {
    fn has_room(&self) -> bool {
        self.has_room
    }

    fn take(&mut self, job: Job<'_>, payload: &mut [u8]) -> Option<Served> {
        let (io, told) = match job {
            Job::Read(Reading {
                offset,
                bytes,
                told,
            }) => (Io::Read { offset, bytes }, told),
            Job::Write(Writing { offset, bytes, .. }) => {
                payload[..bytes.len()].copy_from_slice(&bytes);
                let bytes = bytes.len();
                (Io::Write { offset, bytes }, 0..0)
            }
            Job::Flush => (Io::Flush, 0..0),
        };
        self.taken = Some(Taken { io, told });
        None
    }
}

/// Has `told` at the start, and says how long that is.
pub(crate) fn bring_forward(payload: &mut [u8], told: core::ops::Range<usize>) -> usize {
    let length = told.len();
    if told.start > 0 {
        payload.copy_within(told, 0);
    }
    length
}
