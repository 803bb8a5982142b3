//! The lock of a pool.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

use crate::error::Error;

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Locks an open file or device with flock(2). Tries for a second: udev locks a device while it probes it, and a
/// process that was just forked holds the lock of its parent for a moment. No event reports the end of either.
pub(crate) fn lock(file: &File) -> Result<(), Error> {
    for _try in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Err(Error::Setting("busy: another daemon has this pool".into()))
}
