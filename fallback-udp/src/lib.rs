//! The road that always exists: leases over authenticated UDP
//! (`docs/spec/data-plane-over-udp.md`).
//!
//! Without features this crate is pure: `auth` signs and checks, `engine` answers one datagram at a
//! time, `transfer` decides what a client sends next; time is an argument. The features `server` and
//! `client` put sockets and threads around the two halves.
#![cfg_attr(not(any(test, feature = "server", feature = "client")), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod auth;
#[cfg(feature = "client")]
mod client;
mod desk;
mod engine;
mod hands;
mod keys;
mod limit;
mod parts;
mod replay;
mod room;
#[cfg(feature = "server")]
mod server;
mod sessions;
mod space;
pub mod transfer;

pub use auth::{DataKey, crc32c};
#[cfg(feature = "client")]
pub use client::{
    BlockClient, ClientError, ClientOptions, Completion, Coordinates, Geometry, MemoryClient,
    Refresh,
};
pub use desk::Desk;
pub use engine::{
    Asked, Begin, Leased, Opened, Pending, Reply, ReplyBuffer, Standing, answer, begin, finish,
    open, unauthenticated,
};
pub use hands::Io;
pub use keys::Keys;
pub use limit::{Rate, Sources};
pub use room::{Room, Share};
#[cfg(feature = "server")]
#[doc(hidden)]
pub use server::Plain;
#[cfg(feature = "server")]
pub use server::{Counters, FbbuBackend, FbbuConfig, FbmuBackend, FbmuConfig, Tally};
pub use space::{Space, Store, StoreFailed};
