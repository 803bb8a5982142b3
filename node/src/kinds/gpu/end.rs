//! The end of leases of GPUs by name, and of those that an earlier run has left.

use std::{ffi::OsStr, fs, path::Path, sync::Arc};

use fabricbios_contract::{EndByName, Store, stray_binding_id};
use fabricbios_gpu::{Device, GpuEnd, GpuStore};
use fabricbios_wire::{ResourceId, ResourceType};

use super::gpus;
use crate::kinds::{Ending, Opening, cdi, records};

/// See [`crate::kinds::Kind::end`]. `records`: the directory of the records.
pub(super) fn end(records: &OsStr, ending: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    let end = GpuEnd::at(Path::new(records), ending.supervisor()?)?;
    Ok(Box::new(end))
}

/// Ends the leases that an earlier run with `--gpus` has left. A lease that cannot be cleaned stays in the records, and
/// the next run with `--gpus` fences it.
pub(super) fn end_all(opening: &Opening<'_>, found: &[Device]) -> anyhow::Result<()> {
    let directory = records(&opening.node_id, ResourceType::Gpu);
    if !directory.exists() {
        return Ok(());
    }
    // This call writes no specification: the records name the directories of earlier leases' specifications.
    let gpus = Arc::new(gpus(opening, cdi::named(&opening.settings.shared))?);
    for device in found {
        let store = GpuStore::new(gpus.clone(), device.clone());
        for lease in store.leases()? {
            let binding_id = stray_binding_id(ResourceId(0), lease);
            tracing::warn!(lease_id = %lease, "ending a lease of a GPU that is not on offer any more");
            if let Err(error) = store.release(binding_id, None, &|| ()) {
                tracing::error!(lease_id = %lease, %error, "an earlier lease could not be released");
            }
        }
        store.leave()?;
    }
    gpus.give_nodes_back(|_| false);
    // The directory stays if it has a record of a lease whose device is gone.
    fs::remove_dir(&directory).ok();
    Ok(())
}
