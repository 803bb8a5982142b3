//! The mind of fabricBIOS: who holds what until when, and what must happen next.
//!
//! Pure: time is an argument, the table decides, drivers act. Nothing here performs I/O, asks for
//! the time, spawns or locks.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod backend;
mod time;

pub use backend::*;
pub use time::*;
