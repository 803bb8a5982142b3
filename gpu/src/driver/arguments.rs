//! Arguments of kernels, in the form that the drivers read.

use std::{ffi::c_void, ptr};

/// More bytes than the parameters of a kernel can have (32,764). So a driver never reads more than this at one pointer.
const READ_MAX: usize = 32 << 10;
/// More parameters than a kernel can have: each has at least one byte.
const PARAMETERS_MAX: usize = READ_MAX;
/// Values are aligned to this many bytes.
const ALIGN: usize = size_of::<u128>();

/// An array of pointers to arguments. A driver reads one pointer for each parameter of the kernel, and at each pointer
/// as many bytes as the parameter has. Not every driver can report these numbers beforehand. So there are enough
/// pointers for every kernel, and enough memory behind each pointer for every parameter. Memory without an argument is
/// zero.
#[derive(Debug)]
pub struct Arguments {
    values: Vec<u128>,
    pointers: Vec<*mut c_void>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            pointers: vec![ptr::null_mut(); PARAMETERS_MAX],
        }
    }
}

impl Arguments {
    /// Puts these arguments into the array.
    pub fn set(&mut self, arguments: &[Vec<u8>]) {
        let words = |bytes: usize| bytes.div_ceil(ALIGN);
        let given: usize = arguments.iter().map(|it| words(it.len())).sum();
        self.values.clear();
        self.values.resize(given + words(READ_MAX), 0);
        let mut at = 0;
        let mut pointers = self.pointers.iter_mut();
        for (argument, pointer) in arguments.iter().zip(&mut pointers) {
            for (chunk, value) in argument.chunks(ALIGN).zip(&mut self.values[at..]) {
                let mut bytes = [0; ALIGN];
                bytes[..chunk.len()].copy_from_slice(chunk);
                *value = u128::from_ne_bytes(bytes);
            }
            *pointer = self.values[at..].as_mut_ptr().cast();
            at += words(argument.len());
        }
        let zeroes: *mut c_void = self.values[given..].as_mut_ptr().cast();
        pointers.for_each(|pointer| *pointer = zeroes);
    }

    /// The array. It is valid until the arguments change.
    pub(super) fn pointers(&mut self) -> *mut *mut c_void {
        self.pointers.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that a driver reads for a parameter.
    fn read(arguments: &mut Arguments, index: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: the array has this pointer, and at least `bytes` bytes are behind it.
        unsafe {
            let value = arguments.pointers().add(index).read();
            std::slice::from_raw_parts(value.cast(), bytes).to_vec()
        }
    }

    #[test]
    fn every_pointer_has_enough_behind_it() {
        let mut arguments = Arguments::default();
        let many: Vec<Vec<u8>> = (1..=40).map(|n| vec![n; usize::from(n)]).collect();
        arguments.set(&many);
        for (index, argument) in many.iter().enumerate() {
            assert_eq!(read(&mut arguments, index, argument.len()), *argument);
            assert_eq!(read(&mut arguments, index, READ_MAX).len(), READ_MAX);
        }
        for missing in [40, PARAMETERS_MAX - 1] {
            assert_eq!(read(&mut arguments, missing, READ_MAX), [0; READ_MAX]);
        }
        arguments.set(&[vec![7; 4]]);
        assert_eq!(read(&mut arguments, 0, 5), [7, 7, 7, 7, 0]);
        assert_eq!(read(&mut arguments, 1, 16), [0; 16]);
        arguments.set(&[]);
        assert_eq!(read(&mut arguments, 0, 4), [0; 4]);
    }
}
