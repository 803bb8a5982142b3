//! The types of the fabricBIOS wire protocol: ids, classes, TLVs, inventory and control messages.
//!
//! Pure: no I/O, no clock, no unsafe code, no standard library. Every type has one meaning.
//! `docs/spec/fabricbios-wire-encoding-v0.md` states every byte.
//!
//! Panics: no function of this crate panics, whatever the bytes or the values are. A `decode` or
//! `parse` returns a value or an error with the place and the mistake; it never reads past the end,
//! never recurses, and allocates only for items whose bytes are there. An `encode` never writes a wrong
//! length: a value that does not fit becomes a frame that the other side refuses (requests) or a refusal
//! (answers).
//!
//! Read first: `message.rs`, the requests and answers; then `tlv.rs`, the form of all data that later versions extend.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod affinity;
mod binding;
mod binding_tlv;
mod class;
mod constraints;
mod data_plane;
mod discovery;
mod endpoint;
mod error;
mod flat;
mod fleet;
mod fleet_leases;
mod frame;
mod id;
mod inventory_tlv;
mod kind_binding;
mod kinds;
mod lease_alloc;
mod lease_end;
mod lease_info;
mod lease_intent;
mod lease_terms;
mod limits;
mod message;
mod names;
mod params;
mod read;
mod readable;
mod refusal;
mod reply;
mod request;
mod resource;
mod size;
mod structured;
pub mod tag;
pub mod tlv;
mod tried;
mod write;

pub use affinity::Affinity;
pub use binding::*;
pub use class::*;
pub use data_plane::*;
pub use discovery::*;
pub use error::{DecodeError, DecodeFault, Rejected};
pub use flat::{FLAT_ENTRY_LEN, decode_flat, encode_flat};
pub use frame::*;
pub use id::*;
pub use kind_binding::KindBinding;
pub use kinds::*;
pub use lease_intent::{KvCacheIntent, KvCacheTier, LeaseIntent};
pub use lease_terms::LeaseTerms;
pub use limits::*;
pub use message::*;
pub use names::ParseNameError;
pub use params::*;
pub use refusal::*;
pub use request::is_tenant_name;
pub use resource::*;
pub use size::{ParseSizeError, Size};
pub use structured::{decode_structured, encode_structured};
pub use tried::Tried;
