//! The keys of a lease: the one that is valid, and for a while the one before it.

use fabricbios_wire::DataFrame;

use crate::DataKey;

/// At most two keys.
#[derive(Clone, Debug)]
pub struct Keys {
    current: DataKey,
    previous: Option<DataKey>,
}

impl Keys {
    /// Of a new binding.
    #[must_use]
    pub fn new(key: DataKey) -> Self {
        Self {
            current: key,
            previous: None,
        }
    }

    /// A new key; the one until now works beside it.
    pub fn rotate(&mut self, key: DataKey) {
        self.previous = Some(core::mem::replace(&mut self.current, key));
    }

    /// The key before the last rotation, which is dead from now on.
    pub fn retire(&mut self) -> Option<DataKey> {
        self.previous.take()
    }

    /// Whether there are two.
    #[must_use]
    pub fn has_previous(&self) -> bool {
        self.previous.is_some()
    }

    /// All that work.
    pub fn iter(&self) -> impl Iterator<Item = &DataKey> {
        core::iter::once(&self.current).chain(&self.previous)
    }

    /// The key that a frame was made with.
    #[must_use]
    pub fn of(&self, frame: &DataFrame<'_>) -> Option<&DataKey> {
        let payload = frame.header.has_payload_mac().then_some(frame.payload);
        self.iter()
            .find(|key| key.verifies(frame.header_bytes, payload, frame.tag))
    }
}
