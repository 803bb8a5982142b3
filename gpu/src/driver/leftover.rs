//! What one process leaves in a device's memory for the next: for tests of the wipe.

use super::{Context, DriverError, Stream, wipe::take_all};
use crate::{Device, Libraries};

/// The most bytes that are left.
const LEFT_BYTES_MAX: u64 = 256 << 20;
/// So often a part of this size is looked at.
const EVERY_BYTES: u64 = 1 << 20;
const LOOK_BYTES: usize = 4 << 10;

/// What [`search`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Bytes of the device that this process could have.
    pub bytes: u64,
    /// Looks, one for each MiB.
    pub looks: u64,
    /// Looks that saw the pattern.
    pub found: u64,
}

/// Fills memory with the pattern and keeps it: the process ends with it. Returns its bytes. The process must be as for
/// [`Context::open`].
///
/// # Errors
/// The driver refuses.
pub fn leave(libraries: &Libraries, device: &Device, pattern: [u8; 8]) -> Result<u64, DriverError> {
    let context = Context::open(libraries, device.vendor, &device.visible, &device.uuid)?;
    let bytes = LEFT_BYTES_MAX.min(context.memory()?.free / 2);
    let at = context.allocate(bytes)?;
    let mut stream = Stream::new(&context, LOOK_BYTES)?;
    let part = LOOK_BYTES as u64;
    for offset in (0..bytes / part).map(|it| it * part) {
        let memory = stream.free_part(LOOK_BYTES)?;
        memory
            .iter_mut()
            .zip(pattern.iter().cycle())
            .for_each(|(to, byte)| *to = *byte);
        stream.send(at + offset, LOOK_BYTES)?;
    }
    stream.synchronize()?;
    Ok(bytes)
}

/// Takes all free memory, as it is, and looks for the pattern in every MiB. The process must be as for [`Context::open`].
///
/// # Errors
/// The driver refuses.
pub fn search(
    libraries: &Libraries,
    device: &Device,
    pattern: [u8; 8],
) -> Result<Leftover, DriverError> {
    let context = Context::open(libraries, device.vendor, &device.visible, &device.uuid)?;
    let mut stream = Stream::new(&context, LOOK_BYTES)?;
    let (mut looks, mut found) = (0, 0);
    let taken = take_all(&context, EVERY_BYTES, |at, size| {
        for offset in (0..size / EVERY_BYTES).map(|it| it * EVERY_BYTES) {
            stream.begin_fetch(at + offset, LOOK_BYTES)?;
            let seen = stream.fetched(LOOK_BYTES)?;
            looks += 1;
            found += u64::from(seen.windows(pattern.len()).any(|it| it == pattern));
        }
        Ok(())
    })?;
    Ok(Leftover {
        bytes: taken.bytes,
        looks,
        found,
    })
}
