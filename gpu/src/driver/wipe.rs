//! Wiping the free memory of a device.

use serde::{Deserialize, Serialize};

use super::{api::Address, context::Context, error::DriverError, stream::Stream};

/// The largest piece: progress is reported after each.
const PIECE_BYTES_MAX: u64 = 1 << 30;
/// The smallest piece. Drivers take memory from the device in larger parts, so a smaller piece is not worth a call.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// Bytes that are read back at the start, in the middle and at the end of each piece.
const SAMPLE_BYTES: u64 = 4 << 10;

/// The result of a wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wiped {
    /// Bytes that were overwritten with zeroes.
    pub bytes: u64,
    /// Bytes that were free before.
    pub free_bytes: u64,
}

/// Overwrites all free memory of the context's device with zeroes: allocates all of it, in pieces that become smaller,
/// fills them, reads a sample of each, and frees them. `progress` gets the bytes wiped so far and the bytes to wipe.
///
/// # Errors
/// A call of the driver fails for another reason than lack of memory, or memory is not zero after it was filled.
pub fn wipe_free(
    context: &Context,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Wiped, DriverError> {
    let staging = usize::try_from(SAMPLE_BYTES).unwrap_or(usize::MAX);
    let mut stream = Stream::new(context, staging)?;
    let free_bytes = context.memory()?.free;
    let mut wiped = 0;
    take_all(context, PIECE_BYTES_MIN, |at, size| {
        stream.zero(at, size)?;
        check(context, &mut stream, at, size)?;
        wiped += size;
        progress(wiped, free_bytes);
        Ok(())
    })
}

/// Allocates all free memory of the device, in pieces that become smaller, down to `smallest` bytes; calls `each` with
/// the address and the bytes of each piece, and frees them all.
///
/// # Errors
/// A call of the driver fails for another reason than lack of memory, or `each` fails.
pub fn take_all(
    context: &Context,
    smallest: u64,
    mut each: impl FnMut(Address, u64) -> Result<(), DriverError>,
) -> Result<Wiped, DriverError> {
    let free_bytes = context.memory()?.free;
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    let mut size = PIECE_BYTES_MAX;
    let mut taken = Ok(());
    // Memory freed meanwhile is not counted; its owner wipes it.
    while taken.is_ok() && size >= smallest && bytes < free_bytes {
        match context.allocate(size) {
            Ok(at) => {
                pieces.push(at);
                bytes += size;
                taken = each(at, size);
            }
            Err(error) if error.is_out_of_memory() => size /= 2,
            Err(error) => taken = Err(error),
        }
    }
    let freed = pieces.iter().try_for_each(|at| context.free(*at));
    taken.and(freed)?;
    Ok(Wiped { bytes, free_bytes })
}

/// Reads samples of a piece.
fn check(
    context: &Context,
    stream: &mut Stream,
    at: Address,
    size: u64,
) -> Result<(), DriverError> {
    let length = usize::try_from(SAMPLE_BYTES).unwrap_or(usize::MAX);
    for offset in [0, size / 2, size - SAMPLE_BYTES] {
        stream.begin_fetch(at + offset, length)?;
        let sample = stream.fetched(length)?;
        if let Some(wrong) = sample.iter().position(|byte| *byte != 0) {
            let text = format!(
                "byte {} of a piece of {size} bytes is 0x{:02x} after it was filled with zeroes: the device's memory is \
                 defective",
                offset + wrong as u64,
                sample[wrong]
            );
            return Err(DriverError::own(context.vendor(), "wipe", text));
        }
    }
    Ok(())
}
