//! A look at the hardware of all kinds.

use crate::{
    inventory::{detection::Found, hardware::Sources},
    kinds::{KINDS, gpu::FoundGpus, settings::KindSettings},
};

/// What a look reads.
#[derive(Clone, Copy, Debug)]
pub struct Looking<'a> {
    /// The operator's settings.
    pub settings: &'a KindSettings,
    /// The kernel's files.
    pub sources: &'a Sources,
    /// The GPUs that the vendors' libraries report.
    pub gpus: &'a FoundGpus,
}

impl Looking<'_> {
    /// True if hardware is listed that is not on offer.
    pub(crate) fn lists(&self) -> bool {
        self.settings.shared.auto_detect
    }

    /// Looks at the hardware of every kind.
    pub(crate) fn look(&self) -> Found {
        let mut found = Found::default();
        for kind in KINDS {
            (kind.detect)(self, &mut found);
        }
        found
    }
}

#[cfg(test)]
mod tests;
