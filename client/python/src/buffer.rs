//! Python objects with bytes, for transfers without a copy.

use std::slice;

use pyo3::{buffer::PyUntypedBuffer, prelude::*, types::PyMemoryView};

use crate::errors;

/// The bytes of a Python object. As long as this lives, nobody can free or resize them.
pub(crate) struct Held(PyUntypedBuffer);

impl Held {
    /// Any object with contiguous bytes, to be read from.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Not of the object itself: some, such as those of ctypes, leave out what a memoryview fills in.
        let view = PyMemoryView::from(object)?;
        let buffer = PyUntypedBuffer::get(view.as_any())?;
        let why = if has_pointers(buffer.format().to_bytes()) {
            "the bytes of this object are pointers to Python objects: give an array of numbers"
        } else if !buffer.is_c_contiguous() {
            "the bytes of this object are not one contiguous piece (C order): copy it first"
        } else {
            return Ok(Self(buffer));
        };
        Err(errors::usage(object.py(), why))
    }

    /// Any object with contiguous bytes that can be changed.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let held = Self::readable(object)?;
        if !held.0.readonly() {
            return Ok(held);
        }
        let why =
            "this object is read-only: give a bytearray, or another object that can be changed";
        Err(errors::usage(object.py(), why))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0.len_bytes() {
            0 => &[],
            // SAFETY: the buffer is contiguous and is exported, so these bytes stay where they are as long as `self` lives.
            // That no other thread changes them meanwhile is up to the caller, see docs/python.md: Python has no lock for
            // it. The SDK copies and sums the bytes and decides nothing by them, so their values are undefined then.
            length => unsafe { slice::from_raw_parts(self.start().cast_const(), length) },
        }
    }

    /// The object must be one of [`Held::writable`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.len_bytes() {
            0 => &mut [],
            // SAFETY: as in `bytes`; the buffer is not read-only.
            length => unsafe { slice::from_raw_parts_mut(self.start(), length) },
        }
    }

    fn start(&self) -> *mut u8 {
        self.0.buf_ptr().cast()
    }
}

/// Whether a format of PEP 3118 has references to Python objects, `O`. The names of fields are between colons.
fn has_pointers(format: &[u8]) -> bool {
    let mut parts = format.split(|byte| *byte == b':').step_by(2);
    parts.any(|part| part.contains(&b'O'))
}
