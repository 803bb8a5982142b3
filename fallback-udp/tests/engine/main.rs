//! The engine, one datagram at a time: no sockets, no threads, and the test sets the time.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on has failed; numbers are small"
)]

mod blocks;
mod later;
mod limits;
mod random;
mod replays;
#[path = "../served/mod.rs"]
mod served;
mod sessions;
mod statuses;
mod tampering;
mod world;
