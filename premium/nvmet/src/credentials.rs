//! Who may connect, and with which keys: one entry per host NQN, and a record of each, because a lease keeps its
//! names and keys over restarts and reboots.
//!
//! Keys belong to a host NQN and are the same for every subsystem of the node. So a name that a client
//! brings along belongs to one tenant as long as any lease of it lives, and one that the node mints belongs to one lease.
//! A client's kernel refuses two names with one host id, so ids belong to a name.

use std::{collections::BTreeMap, sync::Arc};

use fabricbios_lease::{BindError, StepError};
use fabricbios_wire::{BlockTerms, DhchapSecret, HostId, LeaseId, Nqn};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    host_records::{HostRecords, decode, encode, key_of},
    secret::{mint_host_id, mint_secret, name_of},
};

/// A host, its keys and who uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Credential {
    pub(super) host_nqn: Nqn,
    pub(super) host_id: HostId,
    pub(super) tenant: String,
    /// The node made the name up, for one lease.
    pub(super) minted: bool,
    pub(super) secret: DhchapSecret,
    /// There once a lease has asked for mutual authentication.
    pub(super) ctrl_secret: Option<DhchapSecret>,
    pub(super) leases: Vec<LeaseId>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Credentials {
    records: Arc<dyn HostRecords>,
    entries: BTreeMap<Nqn, Credential>,
}

/// What a lease has been given.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) credential: Credential,
    /// It had none before.
    pub(super) is_new: bool,
}

fn refused(detail: impl std::fmt::Display) -> BindError {
    BindError::Refused(StepError::new("host", detail))
}

impl Credentials {
    /// With what is on record.
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

    /// Names and keys for a lease: those that it has, or its tenant's for that host, or new ones.
    /// `is_foreign`: whether the kernel knows a host that is not from here.
    pub(super) fn take(
        &mut self,
        lease: LeaseId,
        tenant: &str,
        terms: &BlockTerms,
        is_foreign: impl Fn(&Nqn) -> Result<bool, StepError>,
    ) -> Result<Taken, BindError> {
        let (mut credential, is_new) = match self.of(lease) {
            Some(known) => (agreeing(known, terms)?.clone(), false),
            None => (self.choose(tenant, terms, is_foreign)?, true),
        };
        if is_new {
            credential.leases.push(lease);
        }
        if terms.mutual_auth && credential.ctrl_secret.is_none() {
            credential.ctrl_secret = Some(mint_secret().map_err(BindError::Failed)?);
        }
        self.keep(credential.clone()).map_err(BindError::Failed)?;
        Ok(Taken { credential, is_new })
    }

    /// The entry that a lease uses.
    pub(super) fn of(&self, lease: LeaseId) -> Option<&Credential> {
        self.entries
            .values()
            .find(|entry| entry.leases.contains(&lease))
    }

    /// Whether a host is known, by what its record is found by.
    pub(super) fn has(&self, key: u128) -> bool {
        self.entries.keys().any(|name| key_of(name) == key)
    }

    /// Every lease that has names.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.entries
            .values()
            .flat_map(|entry| entry.leases.iter().copied())
    }

    /// The same names with new keys, not kept yet. Refused where another lease would lose its key.
    pub(super) fn renewed(&self, lease: LeaseId) -> Result<Credential, BindError> {
        let old = self
            .of(lease)
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

    /// Has it known, and written down if it is news.
    pub(super) fn keep(&mut self, credential: Credential) -> Result<(), StepError> {
        if self.entries.get(&credential.host_nqn) == Some(&credential) {
            return Ok(());
        }
        let record = encode(&credential)?;
        let key = key_of(&credential.host_nqn);
        self.entries.insert(credential.host_nqn.clone(), credential);
        self.records.write(key, Some(record));
        Ok(())
    }

    /// The lease uses its host no more. If nobody else does, `remove_host` takes the host out of the kernel
    /// before the entry goes. Idempotent.
    pub(super) fn leave(
        &mut self,
        lease: LeaseId,
        remove_host: impl FnOnce(&Nqn) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Some(mut credential) = self.of(lease).cloned() else {
            return Ok(());
        };
        credential.leases.retain(|user| *user != lease);
        if !credential.leases.is_empty() {
            return self.keep(credential);
        }
        remove_host(&credential.host_nqn)?;
        // A record that is there still after a crash is that of a lease that is over: it goes with its export.
        self.records.write(key_of(&credential.host_nqn), None);
        self.entries.remove(&credential.host_nqn);
        Ok(())
    }

    /// An entry for a lease that has none, not kept yet.
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
            // Whose it is, is nobody else's business.
            if entry.minted || entry.tenant != tenant {
                return Err(refused(format_args!(
                    "{name} is in use by another lease: if that host is yours, ask the node's operator, who can \
                     end that lease"
                )));
            }
            return agreeing(entry, terms).cloned();
        }
        if is_foreign(name).map_err(BindError::Failed)? {
            return Err(refused(format_args!(
                "{name} is a host of the kernel's target that this node has not made"
            )));
        }
        let host_id = terms.host_id.or_else(|| name.uuid());
        let host_id = host_id.map_or_else(|| mint_host_id().map_err(BindError::Failed), Ok)?;
        self.fresh(name.clone(), host_id, tenant, false)
    }

    fn mint(&self, tenant: &str, terms: &BlockTerms) -> Result<Credential, BindError> {
        let minted = mint_host_id().map_err(BindError::Failed)?;
        let name = name_of(minted).map_err(BindError::Failed)?;
        self.fresh(name, terms.host_id.unwrap_or(minted), tenant, true)
    }

    fn fresh(
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

/// The entry, if it is what was asked for.
fn agreeing<'a>(entry: &'a Credential, terms: &BlockTerms) -> Result<&'a Credential, BindError> {
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
