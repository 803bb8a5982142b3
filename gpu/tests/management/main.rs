//! The calls of management libraries, made by real helper processes with the stand-ins of the vendors' libraries.

#![cfg(all(feature = "gpu-cuda", feature = "gpu-hip"))]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod account;
mod lab;
mod probe;
mod reset;
mod scrub;
mod trial;
mod watch;
