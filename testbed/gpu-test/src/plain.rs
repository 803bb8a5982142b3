//! A program without leases on the vendor's driver: the peer of the session measurements, and the data that a wipe has
//! to remove.

use std::{os::fd::AsFd, sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use fabricbios_gpu::driver::{Arguments, Context, Image, Module, Shape, Shared, Stream, take_all};
use nix::{
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};

use crate::{bare::Times, kernels::SPIN, tenants::PATTERN};

/// PTX of a kernel that fills memory with a number.
const FILL: &[u8] = include_bytes!("../../stand-ins/ptx/fill.ptx");
/// Most bytes that this program leaves on the device.
const LEFT_BYTES_MAX: u64 = 256 << 20;
/// One look per this many bytes.
const EVERY_BYTES: u64 = 1 << 20;
const LOOK_BYTES: usize = 4 << 10;

/// Times copies of `bytes` bytes and launches of a kernel that ends at once.
pub(crate) fn measure(context: &Context, bytes: u64, rounds: usize) -> Result<Times> {
    let file = memfd_create(c"bare", MFdFlags::MFD_CLOEXEC).context("memfd_create")?;
    ftruncate(&file, i64::try_from(bytes)?).context("ftruncate")?;
    let mut stream = Stream::new(context, 1)?;
    let shared = Shared::map(context, file.as_fd(), bytes)?;
    let mut times = Times {
        is_pinned: shared.is_pinned(),
        ..Times::default()
    };
    stream.share(shared)?;
    let address = context.allocate(bytes)?;
    let module = Arc::new(Module::load(context, &Image::of(SPIN.to_vec()))?);
    let kernel = module.kernel("spin")?;
    let mut arguments = Arguments::default();
    arguments.set(&[0_u64.to_ne_bytes().to_vec()]);
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
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
            times.write.push(written);
            times.read.push(read);
            times.launch.push(began.elapsed());
        }
    }
    context.free(address)?;
    Ok(times)
}

/// Whether a kernel fills memory with a number.
pub(crate) fn computes(context: &Context) -> Result<bool> {
    const WORD: u32 = 0x0102_0304;
    const COUNT: u32 = 1024;
    let bytes = COUNT as usize * 4;
    let at = context.allocate(bytes as u64)?;
    let module = Arc::new(Module::load(context, &Image::of(FILL.to_vec()))?);
    let kernel = module.kernel("fill")?;
    let mut arguments = Arguments::default();
    arguments.set(&[
        at.to_ne_bytes().to_vec(),
        WORD.to_ne_bytes().to_vec(),
        COUNT.to_ne_bytes().to_vec(),
    ]);
    let shape = Shape {
        grid: [COUNT / 256, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
    };
    let mut stream = Stream::new(context, bytes)?;
    stream.launch(&kernel, shape, &mut arguments)?;
    stream.begin_fetch(at, bytes)?;
    let is_right = stream.fetched(bytes)? == WORD.to_ne_bytes().repeat(COUNT as usize);
    context.free(at)?;
    Ok(is_right)
}

/// Fills memory with the pattern and keeps it: the process ends with it. Returns its bytes.
pub(crate) fn leave(context: &Context) -> Result<u64> {
    let bytes = LEFT_BYTES_MAX.min(context.memory()?.free / 2);
    let at = context.allocate(bytes)?;
    let mut stream = Stream::new(context, LOOK_BYTES)?;
    let part = LOOK_BYTES as u64;
    for offset in (0..bytes / part).map(|it| it * part) {
        let memory = stream.free_part(LOOK_BYTES)?;
        memory
            .iter_mut()
            .zip(PATTERN.iter().cycle())
            .for_each(|(to, byte)| *to = *byte);
        stream.send(at + offset, LOOK_BYTES)?;
    }
    stream.synchronize()?;
    Ok(bytes)
}

/// Takes all free memory unchanged and looks for the pattern in every MiB. Returns the bytes that this process could
/// get, the number of looks, and the number of looks that found the pattern.
pub(crate) fn search(context: &Context) -> Result<(u64, u64, u64)> {
    let mut stream = Stream::new(context, LOOK_BYTES)?;
    let (mut looks, mut found) = (0, 0);
    let taken = take_all(context, EVERY_BYTES, |at, size| {
        for offset in (0..size / EVERY_BYTES).map(|it| it * EVERY_BYTES) {
            stream.begin_fetch(at + offset, LOOK_BYTES)?;
            let seen = stream.fetched(LOOK_BYTES)?;
            looks += 1;
            found += u64::from(seen.windows(PATTERN.len()).any(|it| it == PATTERN));
        }
        Ok(())
    })?;
    Ok((taken.bytes, looks, found))
}
