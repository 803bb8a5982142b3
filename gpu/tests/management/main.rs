//! Tests of the calls of management libraries, in real helper processes with stand-ins for the vendors' libraries.

#![cfg(all(feature = "gpu-cuda", feature = "gpu-hip"))]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod account;
mod lab;
mod probe;
mod reset;
mod scrub;
mod trial;
mod watch;
