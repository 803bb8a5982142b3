//! Having a pool exclusively.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Locks it with flock(2) for as long as it is open. Tries for a second: udev has a lock on a device while
/// it looks at it, and a process that has just been started on the one of its parent; nothing tells when
/// they have done.
pub(crate) fn lock(file: &File) -> Result<(), String> {
    for _try in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(error.to_string()),
        }
    }
    Err("busy: another daemon has this pool".to_owned())
}
