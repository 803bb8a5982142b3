//! The bare driver, as a program without leases uses it: what sessions are compared with.

use std::{
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::{Arguments, Context, DriverError, Image, Module, Shape, Shared, Stream};
use crate::{Device, Libraries};

/// Times of the bare driver, one of each round.
#[derive(Clone, Debug, Default)]
pub struct Bare {
    /// One copy from pinned memory to the device.
    pub write: Vec<Duration>,
    /// One copy back.
    pub read: Vec<Duration>,
    /// A kernel, from its launch until it is done.
    pub launch: Vec<Duration>,
    /// The driver could pin shared memory. Copies are slower if not.
    pub is_pinned: bool,
}

/// Times copies of `bytes` bytes and launches of a kernel without arguments in `module`. The process must be as for
/// [`Context::open`].
///
/// # Errors
/// The driver refuses.
pub fn bare(
    libraries: &Libraries,
    device: &Device,
    bytes: u64,
    rounds: usize,
    (module, kernel): (&[u8], &str),
) -> Result<Bare, DriverError> {
    let context = Context::open(libraries, device.vendor, &device.visible, &device.uuid)?;
    let failed =
        |errno: nix::Error| DriverError::own(device.vendor, "memfd_create", errno.to_string());
    let file = memfd_create(c"bare", MFdFlags::MFD_CLOEXEC).map_err(failed)?;
    let length = i64::try_from(bytes).map_err(|_too_long| failed(nix::Error::EFBIG))?;
    ftruncate(&file, length).map_err(failed)?;
    let mut stream = Stream::new(&context, 1)?;
    let shared = Shared::map(&context, file.as_fd(), bytes)?;
    let is_pinned = shared.is_pinned();
    stream.share(shared)?;
    let address = context.allocate(bytes)?;
    let module = Arc::new(Module::load(&context, &Image::of(module.to_vec()))?);
    let kernel = module.kernel(kernel)?;
    let mut arguments = Arguments::new();
    arguments.set(&[0_u64.to_ne_bytes().to_vec()]);
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    let mut bare = Bare {
        is_pinned,
        ..Bare::default()
    };
    // The first round warms up.
    for round in 0..=rounds {
        let began = Instant::now();
        stream.send_shared(address, 0, bytes)?;
        stream.synchronize()?;
        let written = began.elapsed();
        let began = Instant::now();
        stream.fetch_shared(address, 0, bytes)?;
        stream.synchronize()?;
        let read = began.elapsed();
        let began = Instant::now();
        stream.launch(&kernel, shape, &mut arguments)?;
        stream.synchronize()?;
        if round > 0 {
            bare.write.push(written);
            bare.read.push(read);
            bare.launch.push(began.elapsed());
        }
    }
    context.free(address)?;
    Ok(bare)
}
