//! Exports of an earlier run whose pools are not on offer any more. The lease table does not contain them, and their
//! clients would keep access.

use std::{sync::Arc, thread};

use anyhow::Context;
use fabricbios_contract::stray_binding_id;
use fabricbios_nvmet::Target;
use fabricbios_wire::ResourceId;

/// Cuts and removes all stale exports. `Err`: a cut failed; the node must not start then.
pub(super) fn end_all(target: Option<Arc<Target>>) -> anyhow::Result<()> {
    let Some(target) = target else { return Ok(()) };
    let leases = target.leases()?;
    for &lease_id in &leases {
        let proof = target.cut(stray_binding_id(ResourceId(0), lease_id));
        let proof = proof.with_context(|| format!("end lease {lease_id}, whose pool is gone"))?;
        tracing::warn!(%lease_id, %proof, "its pool is not on offer any more: cut");
    }
    // Removing may wait for the storage; deadlines of other leases must not.
    thread::spawn(move || {
        for lease_id in leases {
            if let Err(why) = target.remove(lease_id, &|| ()) {
                tracing::error!(%lease_id, %why, "its export stays");
            }
        }
    });
    Ok(())
}
