//! The hosts that may connect, and their keys: one entry per host NQN. Each entry has a record on disk, because a lease
//! keeps its names and keys over restarts and reboots.
//!
//! Keys belong to a host NQN and are the same for every subsystem of the node. So a name that a client chooses belongs
//! to one tenant as long as any lease has it, and a name that the node makes belongs to one lease. A client's kernel
//! refuses two names with the same host id, so each host id belongs to one name.

use std::{collections::BTreeMap, sync::Arc};

use fabricbios_lease::{BindError, StepError};
use fabricbios_wire::{BlockTerms, DhchapSecret, HostId, LeaseId, Nqn};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    host_records::{HostRecords, decode, encode, record_key},
    secret::{mint_host_id, mint_secret, name_of},
};

/// A host, its keys and the leases that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Credential {
    pub(super) host_nqn: Nqn,
    pub(super) host_id: HostId,
    pub(super) tenant: String,
    /// Whether the node has made the name, for one lease.
    pub(super) minted: bool,
    pub(super) secret: DhchapSecret,
    /// `Some` after a lease has asked for mutual authentication.
    pub(super) ctrl_secret: Option<DhchapSecret>,
    pub(super) leases: Vec<LeaseId>,
}

/// All entries.
#[derive(Debug)]
pub(super) struct Credentials {
    records: Arc<dyn HostRecords>,
    entries: BTreeMap<Nqn, Credential>,
}

/// The entry that a lease was given.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) credential: Credential,
    /// Whether the lease had no entry before this call.
    pub(super) is_new: bool,
}

fn refused(detail: impl std::fmt::Display) -> BindError {
    BindError::Refused(StepError::new("host", detail))
}

impl Credentials {
    /// Reads the records.
    pub(super) fn open(
        known: &[Zeroizing<Vec<u8>>],
        records: Arc<dyn HostRecords>,
    ) -> Result<Self, StepError> {
        let entries = known.iter().map(|record| {
            let entry = decode(record)?;
            Ok((entry.host_nqn.clone(), entry))
        });
        let entries = entries.collect::<Result<_, StepError>>()?;
        Ok(Self { records, entries })
    }

    /// Gives a lease names and keys: its existing ones, those of its tenant for that host, or new ones. `is_foreign`:
    /// whether the kernel has a host with this name that the node did not make.
    pub(super) fn assign(
        &mut self,
        lease: LeaseId,
        tenant: &str,
        terms: &BlockTerms,
        is_foreign: impl Fn(&Nqn) -> Result<bool, StepError>,
    ) -> Result<Assigned, BindError> {
        let (mut credential, is_new) = match self.find(lease) {
            Some(known) => (check_terms(known, terms)?.clone(), false),
            None => (self.choose(tenant, terms, is_foreign)?, true),
        };
        if is_new {
            credential.leases.push(lease);
        }
        if terms.mutual_auth && credential.ctrl_secret.is_none() {
            credential.ctrl_secret = Some(mint_secret().map_err(BindError::Failed)?);
        }
        self.store(credential.clone()).map_err(BindError::Failed)?;
        Ok(Assigned { credential, is_new })
    }

    /// The entry that a lease uses.
    pub(super) fn find(&self, lease: LeaseId) -> Option<&Credential> {
        self.entries
            .values()
            .find(|entry| entry.leases.contains(&lease))
    }

    /// Whether a host has an entry, by [`record_key`].
    pub(super) fn has(&self, key: u128) -> bool {
        self.entries.keys().any(|name| record_key(name) == key)
    }

    /// All leases that have names.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.entries
            .values()
            .flat_map(|entry| entry.leases.iter().copied())
    }

    /// The entry of a lease with new keys; does not store it. Refuses if another lease would lose its key.
    pub(super) fn with_new_keys(&self, lease: LeaseId) -> Result<Credential, BindError> {
        let old = self
            .find(lease)
            .ok_or_else(|| refused(format_args!("lease {lease} has no host and no key")))?;
        if old.leases.len() > 1 {
            return Err(refused(format_args!(
                "{} is the host of other leases too, which would lose their key: end those first, or \
                 ask for a lease without naming a host",
                old.host_nqn
            )));
        }
        let mut credential = old.clone();
        credential.secret = mint_secret().map_err(BindError::Failed)?;
        if let Some(ctrl) = &mut credential.ctrl_secret {
            *ctrl = mint_secret().map_err(BindError::Failed)?;
        }
        Ok(credential)
    }

    /// Stores the entry and, if it changed, its record.
    pub(super) fn store(&mut self, credential: Credential) -> Result<(), StepError> {
        if self.entries.get(&credential.host_nqn) == Some(&credential) {
            return Ok(());
        }
        let record = encode(&credential)?;
        let key = record_key(&credential.host_nqn);
        self.entries.insert(credential.host_nqn.clone(), credential);
        self.records.write(key, Some(record));
        Ok(())
    }

    /// Ends a lease's use of a host. After the last lease, `remove_host` removes the host from the kernel; then the
    /// entry is removed. Idempotent.
    pub(super) fn release(
        &mut self,
        lease: LeaseId,
        remove_host: impl FnOnce(&Nqn) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Some(mut credential) = self.find(lease).cloned() else {
            return Ok(());
        };
        credential.leases.retain(|user| *user != lease);
        if !credential.leases.is_empty() {
            return self.store(credential);
        }
        remove_host(&credential.host_nqn)?;
        // A record that survives a crash here belongs to a lease that is over; it is removed with the lease's export.
        self.records.write(record_key(&credential.host_nqn), None);
        self.entries.remove(&credential.host_nqn);
        Ok(())
    }

    /// Chooses an entry for a lease that has none; does not store it.
    fn choose(
        &self,
        tenant: &str,
        terms: &BlockTerms,
        is_foreign: impl Fn(&Nqn) -> Result<bool, StepError>,
    ) -> Result<Credential, BindError> {
        let Some(name) = &terms.host_nqn else {
            return self.mint(tenant, terms);
        };
        if let Some(entry) = self.entries.get(name) {
            // The error does not name the lease or tenant that uses the host.
            if entry.minted || entry.tenant != tenant {
                return Err(refused(format_args!(
                    "{name} is in use by another lease: if that host is yours, ask the node's operator, who can \
                     end that lease"
                )));
            }
            return check_terms(entry, terms).cloned();
        }
        if is_foreign(name).map_err(BindError::Failed)? {
            return Err(refused(format_args!(
                "{name} is a host of the kernel's target that this node has not made"
            )));
        }
        let host_id = terms.host_id.or_else(|| name.uuid());
        let host_id = host_id.map_or_else(|| mint_host_id().map_err(BindError::Failed), Ok)?;
        self.new_credential(name.clone(), host_id, tenant, false)
    }

    fn mint(&self, tenant: &str, terms: &BlockTerms) -> Result<Credential, BindError> {
        let minted = mint_host_id().map_err(BindError::Failed)?;
        let name = name_of(minted).map_err(BindError::Failed)?;
        self.new_credential(name, terms.host_id.unwrap_or(minted), tenant, true)
    }

    fn new_credential(
        &self,
        host_nqn: Nqn,
        host_id: HostId,
        tenant: &str,
        minted: bool,
    ) -> Result<Credential, BindError> {
        if self.entries.values().any(|entry| entry.host_id == host_id) {
            return Err(refused(format_args!(
                "host id {host_id} belongs to another host NQN, and a client's kernel refuses two names \
                 with one id: give the id of {host_nqn}, or none"
            )));
        }
        Ok(Credential {
            host_nqn,
            host_id,
            tenant: tenant.to_owned(),
            minted,
            secret: mint_secret().map_err(BindError::Failed)?,
            ctrl_secret: None,
            leases: Vec::new(),
        })
    }
}

/// The entry, if it agrees with the terms.
fn check_terms<'a>(entry: &'a Credential, terms: &BlockTerms) -> Result<&'a Credential, BindError> {
    let name = &entry.host_nqn;
    if terms.host_nqn.as_ref().is_some_and(|asked| asked != name) {
        return Err(refused(format_args!("the lease is for host {name}")));
    }
    if terms.host_id.is_some_and(|asked| asked != entry.host_id) {
        let known = entry.host_id;
        return Err(refused(format_args!(
            "{name} has host id {known}, as long as it has leases here"
        )));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests;
