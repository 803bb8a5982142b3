//! Leases over authenticated UDP, the transport that every node has
//! (`docs/spec/data-plane-over-udp.md`).
//!
//! Without features this crate is pure: `auth` signs and checks, `engine` answers one datagram at a
//! time, `transfer` decides what a client sends next; time is an argument. The features `server` and
//! `client` add sockets and threads.
#![cfg_attr(not(any(test, feature = "server", feature = "client")), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod auth;
#[cfg(any(feature = "server", feature = "client"))]
#[cfg_attr(
    not(all(feature = "server", feature = "client")),
    allow(dead_code, reason = "the server and the client use a part each")
)]
mod calls;
#[cfg(feature = "client")]
mod client;
mod engine;
mod executor;
mod invariants;
mod keys;
mod limit;
mod parts;
mod replay;
mod room;
#[cfg(feature = "server")]
mod server;
mod session_state;
mod sessions;
#[cfg(any(feature = "server", feature = "client"))]
mod sockopt;
mod space;
pub mod transfer;

pub use auth::{DataKey, crc32c};
#[cfg(feature = "client")]
pub use client::{
    BlockClient, ClientError, ClientOptions, Completion, Coordinates, FailedCall, Geometry,
    MemoryClient, Refresh, RefreshError,
};
pub use engine::{
    AccessState, Begin, Opened, Pending, Reply, ReplyBuffer, Request, ServedLease, answer, begin,
    finish, open, unauthenticated,
};
pub use executor::Io;
pub use invariants::{Broken, Invariant};
pub use keys::Keys;
pub use limit::{Rate, Sources};
pub use replay::ReplayWindow;
pub use room::{Room, Share};
#[cfg(feature = "server")]
pub use server::{Counters, FbbuConfig, FbbuPath, FbmuConfig, FbmuPath, STATUSES, Tally};
pub use session_state::SessionState;
pub use space::{Space, Store, StoreFailed};
