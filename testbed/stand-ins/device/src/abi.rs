//! Arguments of C callers: pointers for results, texts and bytes of the host.
//!
//! Each type has the layout of the pointer that it contains, so it can be a parameter of an exported function. Only
//! exported functions receive these types, from callers that follow the vendor's header.

use std::ffi::{CStr, c_char, c_void};

/// A caller passed null where the header requires a pointer.
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

    /// Writes the results one after the other.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn put_all(&self, values: &[T]) -> Result<(), NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        for (index, value) in values.iter().enumerate() {
            // SAFETY: the caller of the exported function provides room for this many results.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Reads the value that the caller has put there.
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

    /// Whether the pointer is null: the caller wants no result.
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
    /// Writes a text and a zero, cut off at `room` bytes. Returns true if the text was not cut off.
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
        // SAFETY: the caller of the exported function provides `room` bytes.
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
        // SAFETY: the caller of the exported function passes a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// An address in the memory of the process. Streams pass it to their threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct HostMemory(*mut c_void);

// SAFETY: it is only an address. As with a real driver, the C caller is responsible for concurrent access to the
// memory.
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

    /// A copy of `length` bytes.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(&self, length: usize) -> Result<Vec<u8>, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        let mut copy = vec![0; length];
        // SAFETY: the caller of the exported function provides `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.bytes(), copy.as_mut_ptr(), length) };
        Ok(copy)
    }

    /// The byte at this offset from the address.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn byte(&self, offset: usize) -> Result<u8, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function passes a text, and no byte after the end that the header defines
        // is read.
        Ok(unsafe { self.bytes().add(offset).read() })
    }
}

/// A pointer to an array of pointers, or null: `kernelParams` of a launch.
#[derive(Debug)]
#[repr(transparent)]
pub struct Words(*mut *mut c_void);

impl Words {
    /// The pointer at this index of the array.
    ///
    /// # Errors
    /// The array is null.
    pub fn get(&self, index: usize) -> Result<HostMemory, NullPointer> {
        if self.0.is_null() {
            return Err(NullPointer);
        }
        // SAFETY: the caller of the exported function passes as many pointers as the kernel has parameters, or an array
        // with the end that the header defines.
        Ok(HostMemory(unsafe { self.0.add(index).read() }))
    }
}
