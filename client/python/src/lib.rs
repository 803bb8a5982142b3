//! The native half of the Python package `fabricbios`: leases of the SDK as Python objects.
//!
//! Never here: a decision of the SDK. The public names are in `python/fabricbios/`.
//!
//! Read first: `calls.rs`, how a call leaves the interpreter and comes back.

mod alloc;
mod buffer;
mod calls;
mod errors;
mod lease;
mod process;

use pyo3::prelude::*;

/// `fabricbios._native`; its names are in `_native.pyi`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::alloc::{block, cpu, gpu, mem, net};
    #[pymodule_export]
    use crate::errors::report;
    #[pymodule_export]
    use crate::lease::{EndWatch, Lease};
    #[pymodule_export]
    use crate::process::close_at_exit;
}
