//! The serving half: sockets, threads, and the backend of the lease table.

mod backend;
mod batch;
mod bind;
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
mod road;
mod serving;
mod socket;
mod table;
mod worker;

pub use backend::{FbmuBackend, FbmuConfig};
pub use counters::{Counters, Tally};
pub use fbbu::{BlockFile, FbbuBackend, FbbuConfig};
#[doc(hidden)]
pub use plain::Plain;
