//! The server: sockets, threads, and the data paths FBMU and FBBU, which carry out the orders of the lease table.

mod batch;
mod binding_state;
mod block_file;
mod block_server;
mod blocks;
mod buffer;
mod bytes;
mod clock;
mod counters;
mod entry;
mod fbbu;
mod fbmu;
mod leases;
mod memory_server;
mod proof;
mod release;
mod responder;
mod ring;
mod serving;
mod socket;
mod tidying;
mod udp_path;
mod worker;

pub use counters::{Counters, STATUSES, Tally};
pub use fbbu::{FbbuConfig, FbbuPath};
pub use fbmu::{FbmuConfig, FbmuPath};
