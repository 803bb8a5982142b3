//! The keys of a lease: the current one and, for a while after a rotation, the previous one.

use alloc::boxed::Box;

use fabricbios_wire::DataFrame;

use crate::DataKey;

/// At most two keys.
#[derive(Clone, Debug)]
pub struct Keys {
    current: DataKey,
    /// In a box: few leases have one.
    previous: Option<Box<DataKey>>,
    /// Number of the current key: 1 for the first, one more with each rotation.
    number: u64,
    /// The access that the keys gave has ended.
    closed: bool,
}

impl Keys {
    /// The keys of a new binding.
    #[must_use]
    pub fn new(key: DataKey) -> Self {
        Self {
            current: key,
            previous: None,
            number: 1,
            closed: false,
        }
    }

    /// Adds a new key; the previous one goes on working.
    pub fn rotate(&mut self, key: DataKey) {
        self.previous = Some(Box::new(core::mem::replace(&mut self.current, key)));
        self.number += 1;
    }

    /// Removes the previous key and returns it.
    pub fn retire(&mut self) -> Option<Box<DataKey>> {
        self.previous.take()
    }

    /// Whether there is a previous key.
    #[must_use]
    pub fn has_previous(&self) -> bool {
        self.previous.is_some()
    }

    /// Access under these keys has ended. They still sign the replies that say so.
    pub fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// All keys that work.
    pub fn iter(&self) -> impl Iterator<Item = &DataKey> {
        core::iter::once(&self.current).chain(self.previous.as_deref())
    }

    /// The key that verifies a frame, and its number.
    pub(crate) fn of(&self, frame: &DataFrame<'_>) -> Option<(u64, &DataKey)> {
        let mut numbered = (0..).map(|age| self.number - age).zip(self.iter());
        numbered.find(|(_, key)| key.verifies(frame))
    }

    /// The key with this number, if it still works.
    pub(crate) fn numbered(&self, number: u64) -> Option<&DataKey> {
        match self.number.checked_sub(number)? {
            0 => Some(&self.current),
            1 => self.previous.as_deref(),
            _ => None,
        }
    }
}
