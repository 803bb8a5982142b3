//! The words fabricBIOS speaks: ids, classes, TLVs, inventory and control messages.
//!
//! Pure: no I/O, no clock, no unsafe code, no standard library. Every type here is one meaning;
//! every `decode` is total: it returns a value or says what was wrong, never panics, and never
//! allocates on the peer's word. `docs/spec/fabricbios-wire-encoding-v0.md` states every byte.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod binding;
mod class;
mod id;
mod message;
mod params;
mod refusal;
mod resource;

pub use binding::*;
pub use class::*;
pub use id::*;
pub use message::*;
pub use params::*;
pub use refusal::*;
pub use resource::*;
