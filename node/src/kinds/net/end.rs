//! The end of leases of network functions by name.

use std::{ffi::OsStr, path::Path, sync::Arc};

use fabricbios_cgroup::Process;
use fabricbios_contract::EndByName;
use fabricbios_lease::StepError;
use fabricbios_sriov::{macvlan::MacvlanEnd, netlink::Netlink, vf::VfEnd};
use fabricbios_wire::LeaseId;
use nix::unistd::getppid;

use super::places;
use crate::kinds::Ending;

/// See [`crate::kinds::Kind::end`]. `records`: the directory of the records.
pub(super) fn end(records: &OsStr, ending: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    let supervisor = ending.supervisor()?;
    let daemon = Process::of(getppid().as_raw());
    Ok(Box::new(NetEnd {
        macvlans: MacvlanEnd::new(Arc::new(Netlink::open()?)),
        functions: VfEnd::new(&places(Path::new(records)), supervisor, daemon),
    }))
}

/// Ends leases of network functions for the watchdog.
#[derive(Debug)]
struct NetEnd {
    macvlans: MacvlanEnd,
    functions: VfEnd,
}

impl EndByName for NetEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        self.macvlans.end(lease)?;
        self.functions.end(lease)
    }
}
