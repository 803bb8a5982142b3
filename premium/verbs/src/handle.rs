//! A pointer to an object of libibverbs, and the destruction of the object.

use std::{fmt, ptr::NonNull};

use nix::errno::Errno;

use super::{check, last_errno};

/// Owns an object. If the handle is dropped before the object is destroyed, the kernel keeps the object until the
/// process ends, and the log says so.
pub(super) struct Handle<T> {
    raw: Option<NonNull<T>>,
    label: Box<Label>,
}

/// Kind and name of the object, for the log.
struct Label {
    kind: &'static str,
    name: String,
}

// SAFETY: libibverbs documents its objects as usable from any thread, and every handle owns such an object. The crate
// copies only fields that never change out of the objects, and writes one field, the key of a window, under `&mut`.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Makes an object. If `make` fails, it must return null and set errno.
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

    /// The pointer to the object. It exists, since every method that destroys the object consumes its owner.
    pub(super) fn as_ptr(&self) -> *mut T {
        let raw = self.raw.expect("only a consumed object has no pointer");
        raw.as_ptr()
    }

    /// Destroys the object with `destroy`, which returns 0 or an error as verbs do. After an error the object still
    /// exists.
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
