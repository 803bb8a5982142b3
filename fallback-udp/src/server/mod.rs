//! The serving half: sockets, threads, and what the lease table orders of them.

mod backend;
mod batch;
mod block_file;
mod block_server;
mod blocks;
mod buffer;
mod bytes;
mod calls;
mod clock;
mod counters;
mod entry;
mod fbbu;
mod fragments;
mod front;
mod leases;
mod life;
mod memory_server;
mod plain;
mod proof;
mod release;
mod ring;
mod road;
mod serving;
mod socket;
mod tidying;
mod worker;

pub use backend::{FbmuBackend, FbmuConfig};
pub use counters::{Counters, Tally};
pub use fbbu::{FbbuBackend, FbbuConfig};
#[doc(hidden)]
pub use plain::Plain;
