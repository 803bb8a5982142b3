//! A session: its handles, and the objects of the device behind them.

mod end;
mod memory;
mod module;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    },
};

use fabricbios_wire::Refusal;

use super::{
    WorkerOrder,
    modules::Loaded,
    refusal::{exceeded, internal, not_found},
};
use crate::driver::Context;

/// Most buffers and modules at once.
const HANDLES_MAX: usize = 65_536;
/// Device memory of modules that does not count as the session's: a context takes this much anyway.
const MODULE_BYTES_FREE: u64 = 64 << 20;

/// Local variables of a thread up to this many bytes are in memory that every context takes: CUDA's default stack.
const LOCAL_BYTES_FREE: u64 = 1 << 10;

/// The session. Queues are its threads.
///
/// Device work (`Stream`) is queued under the read lock of the state. No thread waits for the device with this lock,
/// except a queue that frees memory: it waits for all queued work twice, first without the lock, so that other queues
/// go on, and then with the write lock, so that nothing can be queued that still uses the memory.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) order: WorkerOrder,
    pub(super) context: Context,
    /// Why the context is lost.
    lost: OnceLock<String>,
    /// Held while device memory is allocated or freed, and while the session is closed. Locked before the state.
    taking: Mutex<()>,
    state: RwLock<EngineState>,
}

#[derive(Debug, Default)]
struct EngineState {
    is_closed: bool,
    numbers: u32,
    memories: HashMap<u32, Memory>,
    modules: HashMap<u32, Arc<Loaded>>,
    buffer_bytes: u64,
    image_bytes: u64,
    module_bytes: u64,
    /// Memory that the driver has taken for local variables of kernels: the need of the largest kernel if all threads
    /// of the device run it.
    local_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    address: u64,
    bytes: u64,
}

impl EngineState {
    /// Bytes that count as used.
    fn used(&self) -> u64 {
        let of_modules = self.module_bytes.saturating_sub(MODULE_BYTES_FREE);
        let of_kernels = self.local_bytes.saturating_add(of_modules);
        self.buffer_bytes.saturating_add(of_kernels)
    }

    fn check_count(&self) -> Result<(), Refusal> {
        if self.memories.len() + self.modules.len() < HANDLES_MAX && self.numbers < u32::MAX {
            return Ok(());
        }
        let why = format!(
            "the session has {HANDLES_MAX} buffers and modules, or had 2^32: free some, or open a new one"
        );
        Err(exceeded(true, why))
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }
}

impl Engine {
    pub(super) fn new(order: WorkerOrder, context: Context) -> Self {
        Self {
            order,
            context,
            lost: OnceLock::new(),
            taking: Mutex::default(),
            state: RwLock::default(),
        }
    }

    /// Device memory that the session uses, bytes.
    pub(super) fn used(&self) -> u64 {
        self.read().used()
    }

    /// Waits for all work of the session.
    pub(super) fn synchronize(&self) -> Result<(), Refusal> {
        self.context
            .synchronize()
            .map_err(|error| self.failed(&error, internal))
    }

    fn handle(&self, number: u32) -> u64 {
        self.order.session << 32 | u64::from(number)
    }

    /// The number of a handle of this session.
    fn number_in(&self, kind: &str, handle: u64) -> Result<u32, Refusal> {
        let number = number_of(handle);
        if self.handle(number) == handle {
            return Ok(number);
        }
        let why = format!(
            "{kind} {handle:#x} is of another session than {}, the one of this stream",
            self.order.session
        );
        Err(not_found(why))
    }

    fn read(&self) -> RwLockReadGuard<'_, EngineState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, EngineState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn taking(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lower half of the handle.
fn number_of(handle: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = handle.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn unknown(kind: &str, handle: u64) -> Refusal {
    not_found(format!(
        "{kind} {handle:#x} does not exist: it was freed, or never made"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_modules_count() {
        let mut state = EngineState {
            buffer_bytes: 1000,
            module_bytes: MODULE_BYTES_FREE,
            ..EngineState::default()
        };
        assert_eq!(state.used(), 1000);
        state.module_bytes += 5;
        assert_eq!(state.used(), 1005);
    }

    #[test]
    fn numbers_are_never_used_twice() {
        let mut state = EngineState {
            numbers: u32::MAX - 1,
            ..EngineState::default()
        };
        assert_eq!(state.check_count(), Ok(()));
        assert_eq!(state.number(), u32::MAX);
        assert!(state.check_count().is_err());
    }
}
