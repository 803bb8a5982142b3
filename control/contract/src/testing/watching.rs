//! A guard for tests.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use fabricbios_lease::{BindingId, BootTime};

use crate::Guard;

/// A guard that remembers its calls.
#[derive(Debug, Default)]
pub struct Watching {
    is_absent: AtomicBool,
    over: Mutex<Vec<BindingId>>,
    extended: Mutex<Vec<(BindingId, BootTime)>>,
}

impl Watching {
    /// The watchdog is there from now on, or not.
    pub fn set_present(&self, is_present: bool) {
        self.is_absent.store(!is_present, Ordering::Relaxed);
    }

    /// The bindings whose end was proved.
    pub fn over(&self) -> Vec<BindingId> {
        self.over.lock().unwrap().clone()
    }

    /// The deadlines.
    pub fn extended(&self) -> Vec<(BindingId, BootTime)> {
        self.extended.lock().unwrap().clone()
    }
}

impl Guard for Watching {
    fn watches(&self) -> bool {
        !self.is_absent.load(Ordering::Relaxed)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) {
        self.extended.lock().unwrap().push((binding_id, deadline));
    }

    fn over(&self, binding_id: BindingId) {
        self.over.lock().unwrap().push(binding_id);
    }
}
