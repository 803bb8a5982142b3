//! Kernels and their arguments.

use fabricbios_wire::{
    GPU_ARGUMENT_BYTES_MAX, GPU_ARGUMENTS_MAX, GPU_KERNEL_BYTES_MAX, GpuLaunch, MAX_PAYLOAD,
};

use super::{GpuMemory, GpuModule, queue::Queue};
use crate::Error;

/// Most bytes of a launch request besides its arguments.
const LAUNCH_BYTES: usize = 512;

/// An argument of a kernel. Numbers have the byte order of the device, which is little-endian.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// `unsigned int` of CUDA C.
    U32(u32),
    /// `unsigned long long`.
    U64(u64),
    /// `int`.
    I32(i32),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// A pointer to memory of the session.
    Memory(&'a GpuMemory),
    /// Exactly these bytes, such as a structure.
    Bytes(&'a [u8]),
}

impl Argument<'_> {
    fn bytes(&self, queue: &Queue) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::U32(number) => number.to_le_bytes().to_vec(),
            Self::U64(number) => number.to_le_bytes().to_vec(),
            Self::I32(number) => number.to_le_bytes().to_vec(),
            Self::F32(number) => number.to_le_bytes().to_vec(),
            Self::F64(number) => number.to_le_bytes().to_vec(),
            Self::Memory(memory) => {
                memory.check_session(queue)?;
                memory.address().to_le_bytes().to_vec()
            }
            Self::Bytes(bytes) => bytes.to_vec(),
        })
    }
}

/// Each line: type, variant.
macro_rules! from {
    ($($type:ty, $variant:ident;)*) => {$(
        impl<'a> From<$type> for Argument<'a> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

from! {
    u32, U32;
    u64, U64;
    i32, I32;
    f32, F32;
    f64, F64;
    &'a GpuMemory, Memory;
    &'a [u8], Bytes;
}

/// The request for a kernel. Arguments that no worker accepts are refused here.
pub(super) fn launch(
    queue: &Queue,
    module: &GpuModule,
    kernel: &str,
    (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
    arguments: &[Argument<'_>],
) -> Result<GpuLaunch, Error> {
    let usage = |why: String| Err(Error::Usage(format!("kernel {kernel:?}: {why}")));
    if kernel.is_empty() || kernel.len() > GPU_KERNEL_BYTES_MAX || kernel.contains('\0') {
        return usage(format!(
            "a kernel's name has 1 to {GPU_KERNEL_BYTES_MAX} bytes, none of them zero"
        ));
    }
    if arguments.len() > GPU_ARGUMENTS_MAX {
        let given = arguments.len();
        return usage(format!(
            "{given} arguments were given; a kernel has at most {GPU_ARGUMENTS_MAX}"
        ));
    }
    let arguments: Vec<Vec<u8>> = { arguments.iter() }
        .map(|it| it.bytes(queue))
        .collect::<Result<_, _>>()?;
    for (index, argument) in arguments.iter().enumerate() {
        let length = argument.len();
        if !(1..=GPU_ARGUMENT_BYTES_MAX).contains(&length) {
            return usage(format!(
                "argument {index} has {length} bytes; each has 1 to {GPU_ARGUMENT_BYTES_MAX}"
            ));
        }
    }
    let all: usize = arguments.iter().map(|it| it.len() + 4).sum();
    if all + LAUNCH_BYTES > MAX_PAYLOAD {
        return usage(format!(
            "the arguments have {all} bytes, which are too many for a request"
        ));
    }
    Ok(GpuLaunch {
        module: module.number(queue)?,
        kernel: kernel.to_owned(),
        grid,
        block,
        shared_bytes,
        arguments,
    })
}
