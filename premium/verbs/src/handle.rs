//! An object of libibverbs: made, used and taken down.

use std::{fmt, ptr::NonNull};

use nix::errno::Errno;

use super::{check, last_errno};

/// Dropped before it is taken down, it stays in the kernel until the process ends; the log says so.
pub(super) struct Handle<T> {
    raw: Option<NonNull<T>>,
    label: Box<Label>,
}

/// For the log.
struct Label {
    kind: &'static str,
    name: String,
}

// SAFETY: libibverbs documents its objects as usable from any thread. The crate makes handles of nothing else, copies
// fields out that never change, and writes the one that does, the key of a window, under `&mut` only.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// `make` returns null where it fails, and sets errno.
    pub(super) fn make(
        kind: &'static str,
        name: impl Into<String>,
        make: impl FnOnce() -> *mut T,
    ) -> Result<Self, Errno> {
        Errno::clear();
        Ok(Self {
            raw: Some(NonNull::new(make()).ok_or_else(last_errno)?),
            label: Box::new(Label {
                kind,
                name: name.into(),
            }),
        })
    }

    pub(super) fn rename(&mut self, name: String) {
        self.label.name = name;
    }

    pub(super) fn name(&self) -> &str {
        &self.label.name
    }

    /// Each method that takes an object down consumes it, so an absent one cannot be reached.
    pub(super) fn as_ptr(&self) -> *mut T {
        let raw = self.raw.expect("only a consumed object has no pointer");
        raw.as_ptr()
    }

    /// `destroy` returns as verbs do; after a refusal the object is still there.
    pub(super) fn take_down(&mut self, destroy: impl FnOnce(*mut T) -> i32) -> Result<(), Errno> {
        check(destroy(self.as_ptr()))?;
        self.raw = None;
        Ok(())
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.label.kind, self.label.name)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.raw.is_some() {
            let Label { kind, name } = &*self.label;
            tracing::warn!(kind, %name, "verbs object was dropped and not destroyed");
        }
    }
}
