//! The vendors' drivers. CUDA's driver API and HIP have the same calls with the same shapes, so one table of function
//! pointers with two lists of names is the binding for both. The libraries are loaded at run time.
//!
//! All unsafe code of sessions is here. Memory of a device is named by its address, which is a number: no call of this
//! module reads or writes there as memory of the process.

mod api;
mod arguments;
mod bare;
mod context;
mod environment;
mod error;
mod leftover;
mod module;
mod shared;
mod stream;
mod wipe;

pub(crate) use arguments::Arguments;
pub use bare::{Bare, bare};
pub(crate) use context::Driver;
pub use context::{Context, MemoryInfo};
pub use error::DriverError;
pub use leftover::{Leftover, leave, search};
pub(crate) use module::{Image, Kernel, Module};
pub(crate) use shared::Shared;
pub(crate) use stream::{Shape, Stream};
pub use wipe::{Wiped, wipe_free};
