//! A third kind of resource, which is there to show what a kind needs: numbered units, given out in sets, alone or
//! shared. It is leased with the terms of CPU cores and has no transport.
//!
//! A unit is a counter in a file of its own. [`UnitStore`] says whose each unit is and sets it to 0 before somebody
//! else has it. [`UnitPath`] gives a client a descriptor through which it adds to the counters of its lease, and ends
//! that. Neither knows the other, nor the node: docs/adding-a-kind.md goes through them step by step.

mod client;
mod path;
mod session;
mod store;

use std::{
    fs::{DirEntry, File},
    io,
    path::{Path, PathBuf},
};

use fabricbios_lease::{AllocationMode, Durability, FenceScope, Offer, StepError};
use fabricbios_wire::{LeaseId, ResourceId};

pub use client::Client;
pub use path::UnitPath;
pub use store::UnitStore;

/// What the table may give out: units 0 to `count`, each to one lease alone or to `sharers` leases that share.
#[must_use]
pub fn offer(resource_id: ResourceId, count: u32, sharers: u32) -> Offer {
    Offer {
        resource_id,
        capacity: count.into(),
        align: 1,
        transports: Vec::new(),
        // Files and names of sockets stay when the process ends.
        durability: Durability::Boot,
        // A unit that cannot be cleaned is nobody else's.
        fence_scope: FenceScope::Part,
        allocation_mode: AllocationMode::Units {
            numbers: (0..count).collect(),
            sharers,
        },
        read_only: false,
    }
}

/// The directory is one process's. Waits until the one before has ended.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::create(directory.join("lock"))?;
    file.lock()?;
    Ok(file)
}

/// The leases after which something in the directory is named.
fn leases_in(directory: &Path) -> Result<Vec<LeaseId>, StepError> {
    let names = names_in(directory).map_err(|error| failed("list leases", directory, &error))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let name = |it: io::Result<DirEntry>| Ok(it?.file_name().to_string_lossy().into_owned());
    directory.read_dir()?.map(name).collect()
}

/// What is named after a lease.
fn of_lease(directory: &Path, lease: LeaseId) -> PathBuf {
    directory.join(lease.to_string())
}

fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    let detail = format_args!("{}: {error}", at.display());
    StepError::new(step, detail).with_errno(error.raw_os_error())
}

/// Nothing is there any more, or never was.
fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
