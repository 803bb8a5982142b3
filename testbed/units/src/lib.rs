//! A third kind of resource, which shows what a kind needs: numbered units, leased in sets, alone or shared. It
//! uses the terms of CPU cores and has no transport.
//!
//! A unit is a counter in its own file. [`UnitStore`] records which lease has which unit and sets a unit to 0
//! before another lease gets it. [`UnitPath`] gives a client a descriptor through which it adds to the counters
//! of its lease, and ends this access. Store, path and node do not know each other: docs/adding-a-kind.md
//! explains them step by step.

mod client;
mod path;
mod session;
mod store;

use std::{
    fs::{DirEntry, File},
    io,
    path::{Path, PathBuf},
};

use fabricbios_lease::{
    AllocationMode, ClassOffer, ClassState, Durability, FenceScope, Offer, OfferedClass, StepError,
};
use fabricbios_wire::{CpuIsolationClass, LeaseId, ResourceId};

pub use client::Client;
pub use path::{UnitEnd, UnitPath};
pub use store::UnitStore;

/// The offer to the table: units below `count`, each for one lease alone or for up to `sharers` leases that share it.
#[must_use]
pub fn offer(resource_id: ResourceId, count: u32, sharers: u32) -> Offer {
    Offer {
        resource_id,
        capacity: count.into(),
        align: 1,
        transports: Vec::new(),
        // Files and names of sockets stay when the process ends.
        durability: Durability::Boot,
        // A unit that cannot be cleaned is given to no other lease.
        fence_scope: FenceScope::Part,
        cut_within: None,
        allocation_mode: AllocationMode::Units {
            numbers: (0..count).collect(),
            sharers,
        },
        read_only: false,
        classes: Some(ClassOffer {
            default: CpuIsolationClass::WholeCore as u8,
            classes: vec![
                class(CpuIsolationClass::BestEffort, ClassState::Enforced),
                class(CpuIsolationClass::WholeCore, ClassState::Enforced),
                class(
                    CpuIsolationClass::StrictIsolated,
                    ClassState::Refused("units have no topology".into()),
                ),
            ],
        }),
        rate: None,
        needs_vlan: None,
    }
}

fn class(class: CpuIsolationClass, state: ClassState) -> OfferedClass {
    let class = class as u8;
    OfferedClass { class, state }
}

/// Locks the directory for this process. Waits until an earlier process has ended.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::create(directory.join("lock"))?;
    file.lock()?;
    Ok(file)
}

/// The leases whose ids are names in the directory.
fn leases_in(directory: &Path) -> Result<Vec<LeaseId>, StepError> {
    let names = names_in(directory).map_err(|error| failed("list leases", directory, &error))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let name = |it: io::Result<DirEntry>| Ok(it?.file_name().to_string_lossy().into_owned());
    directory.read_dir()?.map(name).collect()
}

/// The name of a lease in a directory.
fn of_lease(directory: &Path, lease: LeaseId) -> PathBuf {
    directory.join(lease.to_string())
}

fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    let detail = format_args!("{}: {error}", at.display());
    StepError::new(step, detail).with_errno(error.raw_os_error())
}

/// Success also if the file does not exist.
fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
