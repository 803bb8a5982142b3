//! `lease free --all`, `lease revoke --tenant`: ends many leases, one after the other.

use std::collections::BTreeSet;

use fabricbios_client::{Error, Node};
use fabricbios_wire::{
    LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, Reply, Request, RevokeOutcome, Role,
};

use super::{identity, lease, not_found};
use crate::{
    failure::Failure,
    json::{Object, field},
    output::Output,
};

/// Frees the leases of the caller. The node lists the leases of all tenants to an operator; the others are left out.
pub(super) fn free(node: &Node, output: Output) -> Result<(), Failure> {
    let tenant = identity::ask(node)?.tenant;
    let is_own = |of: Option<&str>| of.is_none_or(|of| of == tenant);
    end_all(node, is_own, output, |node, id| {
        Ok(Some(node.lease(Request::LeaseFree(id))?.phase))
    })
}

/// Revokes all leases of a tenant.
///
/// # Errors
/// If the caller is no operator. A tenant's list has only the tenant's own leases, without tenant names, so none would
/// match.
pub(super) fn revoke(node: &Node, tenant: &str, output: Output) -> Result<(), Failure> {
    if identity::ask(node)?.role != Role::Operator {
        let refusal = Refusal::new(
            LeaseError::NotPermitted,
            RefusalClass::Permanent,
            "leases are revoked by an operator; `lease free --all` ends your own",
        );
        return Err(Error::Refused(refusal).into());
    }
    let is_its = |of: Option<&str>| of == Some(tenant);
    end_all(node, is_its, output, |node, id| {
        match node.call(Request::LeaseRevoke(id))? {
            Reply::Revoked(RevokeOutcome::Fenced) => Ok(Some(LeasePhase::Fenced)),
            Reply::Revoked(RevokeOutcome::TornDown) => Ok(Some(LeasePhase::Revoked)),
            Reply::Revoked(RevokeOutcome::NotFound) => Ok(None),
            other => Err(node.unexpected("a revocation", &other)),
        }
    })
}

/// Whether a lease ended by itself meanwhile. A scheduler that does not find one now says so as transient.
fn has_ended(error: &Error) -> bool {
    use LeaseError::{Expired, NotFound, Revoked};
    error.refusal().is_some_and(|refusal| match refusal.error {
        Expired | Revoked => true,
        NotFound => refusal.class != RefusalClass::Transient,
        _ => false,
    })
}

/// Ends each lease whose tenant `is_one` accepts. `end` returns `None` for a lease that ended by itself meanwhile. After a
/// failure the other leases are still ended; the last failure is returned.
fn end_all(
    node: &Node,
    is_one: impl Fn(Option<&str>) -> bool,
    output: Output,
    end: impl Fn(&Node, LeaseId) -> Result<Option<LeasePhase>, Error>,
) -> Result<(), Failure> {
    let (mut ended, mut last) = (Vec::new(), None);
    let mut fail = |failure: Failure| {
        if let Some(before) = last.replace(failure) {
            before.report(output);
        }
    };
    let mut silent = BTreeSet::new();
    for (id, node) in lease::live(node, is_one)? {
        let node = match node {
            // A node that does not answer must not keep the leases of others alive.
            Ok(node) if silent.contains(node.address()) => {
                let why = format!("its node {} did not answer before", node.address());
                fail(not_found(why).at(&format!("lease {id}")));
                continue;
            }
            Ok(node) => node,
            Err(failure) => {
                fail(failure.at(&format!("lease {id}")));
                continue;
            }
        };
        let phase = match end(&node, id) {
            Ok(Some(phase)) => phase,
            Ok(None) => continue,
            Err(error) if has_ended(&error) => continue,
            Err(error) => {
                if matches!(error, Error::Unreachable { .. }) {
                    silent.insert(node.address().to_owned());
                }
                fail(Failure::from(error).at(&format!("lease {id}")));
                continue;
            }
        };
        if phase == LeasePhase::Fenced {
            fail(lease::fenced(id));
        }
        ended.push((id, phase));
    }
    let lease = |(id, phase): &(LeaseId, LeasePhase)| {
        Object::from([
            field("lease_id", id.to_string()),
            field("state", phase.name()),
        ])
    };
    let leases: Vec<Object<'_>> = ended.iter().map(lease).collect();
    let json = Object::from([field("leases", leases)]);
    let line = |(id, phase): &(LeaseId, LeasePhase)| format!("lease {id} is {phase}\n");
    output.print(&json, || match &ended[..] {
        [] => "no leases".to_owned(),
        ended => ended.iter().map(line).collect(),
    })?;
    last.map_or(Ok(()), Err)
}
