//! The server as a client sees it: frames over sockets of this machine.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on has failed; numbers are small"
)]

mod blocks;
mod client;
mod cutting;
mod extending;
mod fixture;
mod floods;
mod keys;
mod life;
mod sockets;
mod suite;
