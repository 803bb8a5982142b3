//! The emulated GPU behind the stand-ins of `libcuda`, `libamdhip64` and `libnvidia-ml`.
//!
//! A device is a file of memory that all processes map, and a table that assigns parts of the memory to processes.
//! Bytes that a process writes stay there after the process has ended, as on a real device, until they are overwritten.
//! Files set faults, see [`Knob`]. Nothing here computes on a GPU: kernels are a few functions in Rust, chosen by name.

mod abi;
mod account;
mod context;
mod device;
mod directory;
mod driver;
mod identity;
mod kernel;
mod knob;
mod launch;
mod mapping;
mod module;
mod owner;
mod status;
mod stream;
mod table;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use abi::{HostMemory, NullPointer, Out, OutText, Text, Words};
pub use account::{Process, Share, Usage};
pub use device::Device;
pub use directory::{Directory, VARIABLE};
pub use driver::{Attribute, Driver};
pub use identity::{Identity, Vendor};
pub use knob::{Change, Knob, Knobs};
pub use launch::Grid;
pub use module::{Entry, Module, Parameter};
pub use owner::Owner;
pub use status::Status;

/// Locks a mutex. A panic of another thread leaves the data whole, so a poisoned lock is used too.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
