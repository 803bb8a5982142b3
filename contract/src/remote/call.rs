//! Calls over the socket. Each outcome is the result of the method of the same name, encoded by postcard.

use fabricbios_lease::{BindOrder, BindingId, BootTime, Linger, Placement, StepError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::{Revoked, Volume};

/// A call of a [`crate::Store`] or a [`crate::DataPath`]. The descriptor of a part is beside the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// [`crate::Store::prepare`].
    Prepare(BindOrder),
    /// [`crate::Store::open`]. The outcome is [`Told`].
    Open(BindOrder),
    /// [`crate::Store::forget`].
    Forget(BindingId, Placement),
    /// [`crate::Store::release`].
    Release(BindingId, Option<Placement>),
    /// [`crate::Store::tell_condition`]; conditions come in frames of their own.
    TellCondition,
    /// [`crate::DataPath::bind`].
    Bind(BindOrder, Told),
    /// [`crate::DataPath::extend`].
    Extend(BindingId, BootTime),
    /// [`crate::DataPath::fenced`].
    Fenced(BindingId),
    /// [`crate::DataPath::rotate`].
    Rotate(BindingId),
    /// [`crate::DataPath::retire_key`].
    RetireKey(BindingId),
    /// [`crate::DataPath::revoke`].
    Revoke(BindingId, Linger),
    /// [`crate::DataPath::verify`].
    Verify(BindingId, Option<Revoked>),
    /// [`crate::DataPath::remove`].
    Remove(BindingId),
    /// [`crate::Store::leases`] or [`crate::DataPath::leases`].
    Leases,
    /// [`crate::Store::confirm`].
    Confirm(BindingId),
}

/// A [`crate::Part`] without its descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub(super) placement: Placement,
    pub(super) volume: Option<Volume>,
}

/// A value as bytes, which are wiped when dropped: they may contain keys.
///
/// # Errors
/// A path that is not valid Unicode.
pub fn encode<T: Serialize>(value: &T) -> Result<Zeroizing<Vec<u8>>, StepError> {
    // Enough for every message with a key: a buffer that grows would leave a copy of the key behind.
    let room = Vec::with_capacity(64 << 10);
    let bytes = postcard::to_extend(value, room);
    bytes
        .map(Zeroizing::new)
        .map_err(|error| StepError::new("encode a message", error))
}

/// A value from bytes.
///
/// # Errors
/// The bytes are no such value, or there are more bytes behind it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StepError> {
    let failed = |why: String| StepError::new("decode a message", why);
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(failed(format!("{} bytes behind its end", rest.len()))),
        Err(error) => Err(failed(error.to_string())),
    }
}
