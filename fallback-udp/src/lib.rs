//! The road that always exists: leases over authenticated UDP
//! (`docs/spec/data-plane-over-udp.md`).
//!
//! Without features this crate is pure: `auth` signs and checks, `engine` answers one datagram at a
//! time, `transfer` decides what a client sends next; time is an argument. The features `server` and
//! `client` put sockets and threads around the two halves.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "server", feature = "client"))]
extern crate std;

mod auth;

pub use auth::{DataKey, crc32c};
