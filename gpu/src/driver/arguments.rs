//! Arguments of kernels, as the drivers read them.

use std::{ffi::c_void, ptr};

/// More bytes than the parameters of a kernel can have (32,764), and so more than the driver reads at a pointer.
const READ_MAX: usize = 32 << 10;
/// More parameters than a kernel can have: each has at least a byte.
const PARAMETERS_MAX: usize = READ_MAX;
/// Values are aligned to this many bytes.
const ALIGN: usize = size_of::<u128>();

/// A row of pointers to arguments. A driver reads as many pointers as the kernel has parameters, and at each of them as many
/// bytes as the parameter has. Not every driver can tell beforehand how many that is, so there are pointers enough for every
/// kernel, and behind each is memory enough for every parameter: what was not given is zero.
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
    /// Puts these arguments into the row.
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

    /// The row. It is valid until the arguments change.
    pub(super) fn pointers(&mut self) -> *mut *mut c_void {
        self.pointers.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a driver reads for a parameter.
    fn read(arguments: &mut Arguments, index: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: the row has this pointer, and there are so many bytes behind it.
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
