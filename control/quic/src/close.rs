//! The codes with which a node closes connections and streams.

pub(crate) const DONE: u32 = 0;
pub(crate) const SHUTTING_DOWN: u32 = 1;
pub(crate) const TOO_MANY: u32 = 2;
pub(crate) const NOT_A_PRINCIPAL: u32 = 3;
pub(crate) const EXPIRED: u32 = 4;
/// Of a stream: the peer does not read the answer.
pub(crate) const NOT_READ: u32 = 5;
