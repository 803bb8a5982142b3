//! The part that the CUDA driver API and HIP have in common: one process's contexts, streams, modules and pinned
//! memory.
//!
//! C callers name objects (a context, a stream, a module, a function) with a pointer. Here such a pointer is a number,
//! and an unknown number is refused.

mod contexts;
mod memory;
mod work;

use std::{
    alloc::Layout,
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex, Once, OnceLock},
};

use crate::{
    Device, Entry, Identity, Knob, Module, Status, Usage, Vendor,
    context::{Context, said},
    launch,
};

thread_local! {
    /// The number of the thread's current context; 0 if it has none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// An attribute of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// Multiprocessors.
    Multiprocessors,
    /// Threads that one multiprocessor can have at once.
    ResidentThreads,
}

#[derive(Debug, Clone)]
struct Opened {
    device: Arc<Device>,
    visible: Vec<Identity>,
}

/// Pinned memory of the process.
#[derive(Debug, Clone, Copy)]
struct Pinned {
    length: usize,
    /// Set if the driver has allocated the memory.
    layout: Option<Layout>,
}

/// A module in a context.
#[derive(Debug)]
struct Loaded {
    context: usize,
    module: Arc<Module>,
    /// The address of the module on the device.
    memory: u64,
}

#[derive(Debug)]
struct Objects {
    numbers: usize,
    contexts: BTreeMap<usize, Arc<Context>>,
    /// For each device: its primary context and the number of holds.
    primary: BTreeMap<i32, (usize, u32)>,
    /// Streams with their contexts.
    streams: BTreeMap<usize, usize>,
    modules: BTreeMap<usize, Loaded>,
    /// Kernels with their modules.
    functions: BTreeMap<usize, (usize, Arc<Entry>)>,
    pinned: BTreeMap<usize, Pinned>,
}

impl Objects {
    fn number(&mut self) -> usize {
        // Looks like the address of a pointer, and is above the small numbers that have a meaning of their own.
        self.numbers += 0x10;
        0x10000 + self.numbers
    }
}

/// The driver of one vendor in this process.
#[derive(Debug)]
pub struct Driver {
    vendor: Vendor,
    opened: OnceLock<Opened>,
    /// Held while a primary context is made, so that it is made only once.
    making: Mutex<()>,
    objects: Mutex<Objects>,
}

impl Driver {
    /// A driver that is not initialised yet.
    #[must_use]
    pub const fn new(vendor: Vendor) -> Self {
        Self {
            vendor,
            opened: OnceLock::new(),
            making: Mutex::new(()),
            objects: Mutex::new(Objects {
                numbers: 0,
                contexts: BTreeMap::new(),
                primary: BTreeMap::new(),
                streams: BTreeMap::new(),
                modules: BTreeMap::new(),
                functions: BTreeMap::new(),
                pinned: BTreeMap::new(),
            }),
        }
    }

    /// On the first call, opens the state directory and reads the environment.
    ///
    /// # Errors
    /// No device is visible, it is gone or needs a reset, or the state directory cannot be used.
    pub fn init(&self) -> Result<(), Status> {
        if self.opened.get().is_none() {
            let device = Device::open(self.vendor).map_err(|error| said(&error))?;
            let mut visible = Identity::visible(self.vendor, device.partitions());
            if !self.vendor.is_present(device.knobs()) {
                visible.clear();
            }
            if visible.is_empty() {
                return Err(Status::NO_DEVICE);
            }
            let device = Arc::new(device);
            // Another thread may have been first.
            self.opened.get_or_init(|| Opened { device, visible });
        }
        self.ready().map(drop)
    }

    fn ready(&self) -> Result<&Opened, Status> {
        let opened = self.opened.get().ok_or(Status::NOT_INITIALIZED)?;
        if opened.device.knobs().is_set(Knob::Gone) {
            return Err(Status::DEVICE_UNAVAILABLE);
        }
        if opened.device.knobs().is_set(Knob::ResetRequired) {
            return Err(Status::SYSTEM_NOT_READY);
        }
        Ok(opened)
    }

    /// The number of visible devices.
    ///
    /// # Errors
    /// As [`Driver::init`].
    pub fn count(&self) -> Result<usize, Status> {
        Ok(self.ready()?.visible.len())
    }

    /// The identity of a device.
    ///
    /// # Errors
    /// There is no device with this number.
    pub fn identity(&self, number: i32) -> Result<Identity, Status> {
        let visible = &self.ready()?.visible;
        let number = usize::try_from(number).ok().and_then(|it| visible.get(it));
        number.cloned().ok_or(Status::INVALID_DEVICE)
    }

    /// Memory of a device.
    ///
    /// # Errors
    /// There is no device with this number, or the state directory cannot be used.
    pub fn memory(&self, number: i32) -> Result<Usage, Status> {
        let identity = self.identity(number)?;
        self.ready()?
            .device
            .usage(&identity)
            .map_err(|error| said(&error))
    }

    /// An attribute of a device.
    ///
    /// # Errors
    /// There is no device with this number.
    pub fn attribute(&self, number: i32, attribute: Attribute) -> Result<i32, Status> {
        let identity = self.identity(number)?;
        let value = match attribute {
            Attribute::Multiprocessors => {
                self.ready()?.device.slices(&identity) * Identity::MULTIPROCESSORS_OF_A_SLICE
            }
            Attribute::ResidentThreads => launch::RESIDENT_MAX,
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }
}

/// The device whose knob the exit handler reads.
static AT_EXIT: OnceLock<Arc<Device>> = OnceLock::new();

extern "C" fn at_exit() {
    if let Some(device) = AT_EXIT.get() {
        device.knobs().hang(Knob::HangTeardown);
    }
}

/// Makes the end of the process take as long as the knob says.
fn hang_at_exit(device: &Arc<Device>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        AT_EXIT.get_or_init(|| Arc::clone(device));
        // SAFETY: the handler is a function of a library that stays mapped until the process ends.
        unsafe { nix::libc::atexit(at_exit) };
    });
}
