//! What C callers pass: pointers for results, texts and bytes of the host.
//!
//! The types have the layout of the pointer that they contain, so they can stand in the signature of an exported
//! function. Only such functions receive them, from callers that keep to the vendor's header.

use std::ffi::{CStr, c_char, c_void};

/// A caller gave null where the header asks for a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NullPointer;

/// A pointer to where a result belongs, or null.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes the result.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put(&self, value: T) -> Result<(), NullPointer> {
        self.put_all(&[value])
    }

    /// Writes as many results as there are, one behind the other.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put_all(&self, values: &[T]) -> Result<(), NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller of the exported function has room for so many results there.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Reads what the caller has put there.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(&self) -> Result<T, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function has put a value there, as the header asks.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Whether the caller wants no result.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A pointer to room for a text, or null.
#[derive(Debug)]
#[repr(transparent)]
pub struct OutText(*mut c_char);

impl OutText {
    /// Writes a text and a zero, cut off at `room` bytes. True if nothing had to be cut off.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put(&self, text: &str, room: usize) -> Result<bool, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        if room == 0 {
            return Ok(false);
        }
        let kept = text.len().min(room - 1);
        // SAFETY: the caller of the exported function has `room` bytes there.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), kept);
            self.0.add(kept).write(0);
        }
        Ok(kept == text.len())
    }
}

/// A pointer to a text that ends with a zero, or null.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// A copy of the text.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(&self) -> Result<String, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function gives a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// An address in the memory of the process. Streams carry it to their threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct HostMemory(*mut c_void);

// SAFETY: it is an address. Who reads or writes there is the C caller's concern, as with a real driver.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// Memory of the process at this place.
    #[must_use]
    pub fn at(place: *mut c_void) -> Self {
        Self(place)
    }

    /// The address as a number; 0 for null.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.addr()
    }

    /// The pointer to bytes.
    #[must_use]
    pub fn bytes(&self) -> *mut u8 {
        self.0.cast()
    }

    /// A copy of so many bytes.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(&self, length: usize) -> Result<Vec<u8>, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        let mut copy = vec![0; length];
        // SAFETY: the caller of the exported function has so many bytes there.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(), copy.as_mut_ptr(), length) };
        Ok(copy)
    }

    /// One byte, so far behind the address.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn byte(&self, offset: usize) -> Result<u8, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function reads no further than the header's end of its text.
        Ok(unsafe { self.bytes().add(offset).read() })
    }
}

/// A pointer to a row of pointers, or null: `kernelParams` of a launch.
#[derive(Debug)]
#[repr(transparent)]
pub struct Words(*mut *mut c_void);

impl Words {
    /// The pointer at a place of the row.
    ///
    /// # Errors
    /// The row is null.
    pub fn get(&self, index: usize) -> Result<HostMemory, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function gives as many pointers as the kernel has parameters, or a row that
        // ends as the header says.
        Ok(HostMemory(unsafe { self.0.add(index).read() }))
    }
}
