//! What is asked over the socket. Each outcome is that of the method of the same name, as postcard has it.

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
    /// [`crate::Store::tell_condition`], by frames of their own.
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
    /// Of either.
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

/// As bytes, which are wiped: there may be keys in them.
///
/// # Errors
/// A path that is not valid Unicode.
pub fn encode<T: Serialize>(value: &T) -> Result<Zeroizing<Vec<u8>>, StepError> {
    // Enough for every message with a key, so that none is left behind where a buffer grew.
    let room = Vec::with_capacity(64 << 10);
    let bytes = postcard::to_extend(value, room);
    bytes
        .map(Zeroizing::new)
        .map_err(|error| StepError::new("encode a message", error))
}

/// From bytes.
///
/// # Errors
/// They are no such value, or there is something behind it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StepError> {
    let failed = |why: String| StepError::new("decode a message", why);
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(failed(format!("{} bytes behind its end", rest.len()))),
        Err(error) => Err(failed(error.to_string())),
    }
}
