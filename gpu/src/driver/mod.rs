//! The vendors' drivers. CUDA's driver API and HIP have the same calls with the same shapes, so one table of function
//! pointers with two lists of names binds both. The libraries are loaded at run time.
//!
//! All unsafe code of sessions is here. An address of device memory is only a number: no call of this module reads or
//! writes there as memory of the process.

mod api;
mod arguments;
mod context;
mod environment;
mod error;
mod module;
mod shared;
mod stream;
mod wipe;

pub use arguments::Arguments;
pub(crate) use context::Driver;
pub use context::{Context, MemoryInfo};
pub use error::DriverError;
pub use module::{Image, Kernel, Module};
pub use shared::Shared;
pub use stream::{Shape, Stream};
pub use wipe::{Wiped, take_all, wipe_free};
