//! What every service does alike: orders of the lease table about bindings and keys, carried out on one
//! port.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::Revoked;
use fabricbios_lease::{AlreadyCut, BindError, BootTime, Custody, Lookup, Proof, StepError, Tag};
use fabricbios_wire::{Binding, DataService, DpKey, Endpoint, LeaseId, Limits};

use super::{
    entry::{Content, Entry},
    life::{Life, Slot, State},
    proof::why_unreachable,
    serving::Serving,
};
use crate::{DataKey, Keys, Rate, Standing};

/// Leases over UDP.
#[derive(Debug)]
pub(super) struct Road<C> {
    pub(super) serving: Arc<Serving<C>>,
    custody: Mutex<Custody<Arc<Slot<C>>>>,
    pub(super) address: SocketAddr,
    rate: Rate,
}

impl<C: Content> Road<C> {
    /// No lease is known yet.
    pub(super) fn new(address: SocketAddr, ops_per_second: u32) -> Self {
        let at_once = (ops_per_second / 10).max(256);
        Self {
            serving: Arc::default(),
            custody: Mutex::default(),
            address,
            rate: Rate::new(ops_per_second, at_once),
        }
    }

    /// Held for a look-up, never while a slot's lock is wanted: no lease waits here for another.
    pub(super) fn custody(&self) -> MutexGuard<'_, Custody<Arc<Slot<C>>>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a lease, made if need be.
    pub(super) fn slot(&self, tag: Tag) -> Result<Arc<Slot<C>>, BindError> {
        let slot = self.custody().find_or_make(tag.lease_id);
        slot.ok_or(BindError::Cancelled)
    }

    /// Those of which there is an entry.
    pub(super) fn leases(&self) -> Vec<LeaseId> {
        let all = self.custody().all().into_iter();
        let there = all.filter(|(_, slot)| !matches!(slot.lock().state, State::Empty));
        there.map(|(lease, _)| lease).collect()
    }

    /// Serves `content` as the binding of a tag; of an older one nothing is under way any more then.
    pub(super) fn bind(&self, slot: &Slot<C>, tag: Tag, content: C) -> Result<Binding, BindError> {
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let mut life = self.ready(slot, tag)?;
        let keys = Keys::new(DataKey::new(&key));
        let entry = Arc::new(Entry::new(tag, keys, content, self.rate));
        life.gate.open(tag.generation)?;
        self.serving.leases.serve(Arc::clone(&entry));
        life.key = Some(key);
        life.state = State::Live(entry);
        Ok(self.binding(&life))
    }

    /// The slot, once no older binding is in the way. Waited for is without the lock: a cut never waits
    /// for the storage.
    fn ready<'a>(&self, slot: &'a Slot<C>, tag: Tag) -> Result<MutexGuard<'a, Life<C>>, BindError> {
        loop {
            let mut life = slot.lock();
            if !life.gate.admits(tag.generation) {
                return Err(BindError::Cancelled);
            }
            self.make_way(&mut life, tag)?;
            let Some(older) = life.still_busy() else {
                return Ok(life);
            };
            drop(life);
            let quiet = older.content.wait_until_quiet(&|| ());
            // Which is cut by then.
            quiet.map_err(|why| failed(tag, &format!("of the older binding {why}")).lost())?;
        }
    }

    /// A lock that is taken says that a bind or a cut is under way, whose report tells what comes of it.
    pub(super) fn extend(&self, tag: Tag, deadline: BootTime) -> Result<(), AlreadyCut> {
        let slot = match self.custody().find(tag.lease_id) {
            Lookup::Here(slot) => slot,
            Lookup::Released => return Err(AlreadyCut),
            Lookup::Unknown => return Ok(()),
        };
        if slot
            .try_lock()
            .is_some_and(|life| life.gate.is_over(tag.generation))
        {
            return Err(AlreadyCut);
        }
        if let Some(entry) = self.serving.leases.of(tag) {
            entry.extend(deadline);
        }
        Ok(())
    }

    pub(super) fn fenced(&self, tag: Tag) {
        if let Some(entry) = self.serving.leases.of(tag) {
            entry.set(Standing::Fenced);
        }
    }

    /// A farewell costs nothing here: a key that is cut is answered with NO_LEASE anyway.
    pub(super) fn cut(&self, tag: Tag) -> Result<Proof, StepError> {
        let Some(slot) = self.custody().find_or_make(tag.lease_id) else {
            return Ok(Proof::nothing_to_cut("it was released before"));
        };
        let mut life = slot.lock();
        if let Err(moved_on) = life.gate.revoke(tag.generation) {
            return Ok(moved_on.into());
        }
        self.end(&mut life, tag)
    }

    /// Entries end with their process: where this one has none, there is none.
    pub(super) fn verify(&self, tag: Tag, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        if let Some(revoked) = revoked {
            return Ok(revoked.steps.clone());
        }
        let Some(slot) = self.custody().find(tag.lease_id).here() else {
            return Ok(Proof::nothing_to_cut("no entry of it is here"));
        };
        let life = slot.lock();
        match &life.state {
            State::Live(_) => Err(StepError::new(
                "verify",
                format_args!("{tag}: it is not cut"),
            )),
            State::Failed { error, .. } => Err(error.clone()),
            ended => Ok(why_unreachable(ended)),
        }
    }

    pub(super) fn add_key(&self, tag: Tag) -> Result<Binding, BindError> {
        let slot = self.bound_slot(tag, "rotate").map_err(BindError::Refused)?;
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let mut life = slot.lock();
        let entry = live(&life, tag, "rotate").map_err(BindError::Refused)?;
        let mut keys = entry.keys_alone();
        if keys.has_previous() {
            let detail = format!("{tag}: the key before the last rotation is not retired yet");
            return Err(BindError::Refused(StepError::new("rotate", detail)));
        }
        keys.rotate(DataKey::new(&key));
        drop(keys);
        life.gate.begin(tag.generation);
        life.key = Some(key);
        Ok(self.binding(&life))
    }

    pub(super) fn drop_old_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.bound_slot(tag, "retire key")?;
        let life = slot.lock();
        let entry = live(&life, tag, "retire key")?;
        self.prove_retired(entry)?;
        Ok(self.binding(&life))
    }

    /// Ends whatever older binding there is.
    fn make_way(&self, life: &mut Life<C>, tag: Tag) -> Result<(), BindError> {
        match &life.state {
            State::Empty | State::Cut { .. } => Ok(()),
            State::Live(_) if life.gate.generation() == Some(tag.generation) => {
                Err(failed(tag, "this generation is bound already"))
            }
            State::Live(_) => match self.end(life, tag) {
                Ok(_proof) => Ok(()),
                Err(error) => Err(BindError::Stranded(error)),
            },
            State::Failed { error, .. } => Err(BindError::Stranded(error.clone())),
            State::Dirty { error, .. } => Err(failed(tag, &format!("not clean: {error}"))),
            State::Releasing(_) => Err(BindError::Cancelled),
        }
    }

    /// Coordinates of the binding in use.
    fn binding(&self, life: &Life<C>) -> Binding {
        let State::Live(entry) = &life.state else {
            return Binding::default();
        };
        Binding {
            dp_key: life.key.clone(),
            udp_endpoint: Some(Endpoint::from(self.address)),
            limits: Some(Limits {
                offset: 0,
                length: entry.content.units(),
            }),
            rdma: None,
            nvmeof: None,
        }
    }

    /// The slot of a lease that is bound here.
    fn bound_slot(&self, tag: Tag, step: &'static str) -> Result<Arc<Slot<C>>, StepError> {
        match self.custody().find(tag.lease_id) {
            Lookup::Here(slot) => Ok(slot),
            Lookup::Released | Lookup::Unknown => Err(not_bound(step, tag)),
        }
    }
}

fn fresh_key(tag: Tag) -> Result<DpKey, StepError> {
    let mut key = DpKey([0; 32]);
    let filled = getrandom::fill(&mut key.0);
    filled.map_err(|error| StepError::new("make a key", format_args!("{tag}: {error}")))?;
    Ok(key)
}

fn live<'a, C>(
    life: &'a Life<C>,
    tag: Tag,
    step: &'static str,
) -> Result<&'a Arc<Entry<C>>, StepError> {
    life.live(tag.generation)
        .ok_or_else(|| not_bound(step, tag))
}

fn not_bound(step: &'static str, tag: Tag) -> StepError {
    StepError::new(step, format_args!("{tag}: not bound here"))
}

pub(super) fn failed(tag: Tag, why: &str) -> BindError {
    BindError::Failed(StepError::new("bind", format_args!("{tag}: {why}")))
}

/// As people call a service.
pub(super) fn name_of(service: DataService) -> &'static str {
    match service {
        DataService::Memory => "FBMU",
        DataService::Block => "FBBU",
    }
}
