//! Exports of an earlier run whose pools are not on offer any more: nothing of the table speaks of them, and
//! their clients would go on.

use std::{sync::Arc, thread};

use anyhow::Context;
use fabricbios_contract::stray_binding_id;
use fabricbios_nvmet::Target;
use fabricbios_wire::ResourceId;

/// Cuts and takes away all of them. A cut that fails is an error: a node that cannot end access does not
/// start as if it had.
pub(super) fn exports(target: Option<Arc<Target>>) -> anyhow::Result<()> {
    let Some(target) = target else { return Ok(()) };
    let leases = target.leases()?;
    for &lease_id in &leases {
        let proof = target.cut(stray_binding_id(ResourceId(0), lease_id));
        let proof = proof.with_context(|| format!("end lease {lease_id}, whose pool is gone"))?;
        tracing::warn!(%lease_id, %proof, "its pool is not on offer any more: cut");
    }
    // That can wait for the storage; deadlines of other leases do not.
    thread::spawn(move || {
        for lease_id in leases {
            if let Err(why) = target.remove(lease_id, &|| ()) {
                tracing::error!(%lease_id, %why, "its export stays");
            }
        }
    });
    Ok(())
}
