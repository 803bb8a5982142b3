//! The limits of streams to sessions of GPUs. Such a stream stays open, unlike a request, so it has places of its own.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_fabric::Principal;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass};

use crate::{
    Limits,
    admission::{give_back, take},
};

/// The streams to sessions of all connections.
#[derive(Debug)]
pub(crate) struct SessionPlaces {
    limits: Limits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: HashMap<Principal, usize>,
    /// The streams of `open` whose worker is being connected.
    opening: HashMap<Principal, usize>,
}

/// The place of a stream; dropping this gives it back.
#[derive(Debug)]
pub(crate) struct SessionPlace {
    places: Arc<SessionPlaces>,
    peer: Principal,
    is_opening: bool,
}

impl SessionPlaces {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            counts: Mutex::default(),
        })
    }

    /// A place for a stream of `peer` whose worker is connected next. A refusal is transient.
    pub(crate) fn begin(self: &Arc<Self>, peer: &Principal) -> Result<SessionPlace, Refusal> {
        let all_max = self.limits.session_streams_max;
        let of_one_max = self.limits.session_streams_per_tenant_max;
        let opening_max = self.limits.session_openings_max;
        let mut counts = self.counts();
        if counts.open.values().sum::<usize>() >= all_max {
            return Err(busy(format!(
                "{all_max} streams to sessions are open on this node, which takes no more"
            )));
        }
        if counts.opening.values().sum::<usize>() >= opening_max {
            return Err(busy(format!(
                "{opening_max} sessions are being opened on this node, which takes no more at once"
            )));
        }
        let half = opening_max.div_ceil(2);
        if !take(&mut counts.opening, peer.clone(), half) {
            return Err(busy(format!(
                "{half} sessions of tenant {} are being opened already",
                peer.tenant
            )));
        }
        if !take(&mut counts.open, peer.clone(), of_one_max) {
            give_back(&mut counts.opening, peer);
            return Err(busy(format!(
                "tenant {} has {of_one_max} streams to sessions open, as many as one may: close some first",
                peer.tenant
            )));
        }
        Ok(SessionPlace {
            places: Arc::clone(self),
            peer: peer.clone(),
            is_opening: true,
        })
    }

    /// The counts stay valid if a thread panics.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy(why: String) -> Refusal {
    let message = format!("{why}; try again");
    Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, message)
}

impl SessionPlace {
    /// Marks the worker as connected.
    pub(crate) fn opened(&mut self) {
        if std::mem::take(&mut self.is_opening) {
            give_back(&mut self.places.counts().opening, &self.peer);
        }
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.opened();
        give_back(&mut self.places.counts().open, &self.peer);
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::Role;

    use super::*;

    fn tenant(name: &str) -> Principal {
        Principal {
            tenant: name.into(),
            role: Role::Tenant,
        }
    }

    fn places(all: usize, of_one: usize, opening: usize) -> Arc<SessionPlaces> {
        SessionPlaces::new(Limits {
            session_streams_max: all,
            session_streams_per_tenant_max: of_one,
            session_openings_max: opening,
            ..Limits::default()
        })
    }

    fn why(refused: Result<SessionPlace, Refusal>) -> String {
        let refusal = refused.unwrap_err();
        assert_eq!(
            (refusal.error, refusal.class),
            (LeaseError::ResourceBusy, RefusalClass::Transient)
        );
        refusal.message
    }

    #[test]
    fn each_bound_holds_and_places_come_back() {
        let places = places(3, 2, 100);
        let open = |name| {
            let mut place = places.begin(&tenant(name))?;
            place.opened();
            Ok(place)
        };
        let mut all = vec![open("blue").unwrap(), open("blue").unwrap()];
        assert!(why(open("blue")).contains("tenant blue has 2"));
        all.push(open("red").unwrap());
        assert!(why(open("red")).contains("on this node"));
        all.remove(0);
        all.push(open("red").unwrap());
        drop(all);
        let counts = places.counts();
        assert!(counts.open.is_empty() && counts.opening.is_empty());
    }

    #[test]
    fn a_tenant_leaves_half_of_what_is_opened_at_once_to_the_others() {
        let places = places(100, 100, 4);
        let begin = |name| places.begin(&tenant(name));
        let mut slow = vec![begin("blue").unwrap(), begin("blue").unwrap()];
        assert!(why(begin("blue")).contains("2 sessions of tenant blue"));
        let others = [begin("red").unwrap(), begin("red").unwrap()];
        assert!(why(begin("green")).contains("4 sessions"));
        slow[0].opened();
        slow[0].opened();
        slow.push(begin("blue").unwrap());
        drop((slow, others));
        let counts = places.counts();
        assert!(counts.open.is_empty() && counts.opening.is_empty());
    }
}
