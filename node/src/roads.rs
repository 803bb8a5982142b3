//! Two roads to one arena, as one backend: a lease is bound, cut and released on both together.
//!
//! The UDP road is cut first, because it is cut at once; the RDMA road owns the scrub, because a
//! device may still hold what the other road cannot see. A node with one road uses that as it is.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::{
    Backend, BindError, BindOrder, BootTime, Extent, Farewell, Offer, Outlives, Proof, StepError,
    Tag,
};
use fabricbios_wire::{Binding, LeaseId, RdmaBinding, ResourceId, Transport};

/// A road that shares its bytes with one that scrubs them.
pub trait Guest: Backend {
    /// As [`Backend::release`], but the bytes are scrubbed by somebody else.
    fn retire(&self, tag: Tag) -> Result<(), StepError>;
}

/// See the module.
pub struct Roads {
    rdma: Arc<dyn Backend>,
    udp: Arc<dyn Guest>,
    known: Mutex<HashMap<LeaseId, Keys>>,
}

/// On which roads a lease has keys that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    Neither,
    Rdma,
    /// Also a lease over both roads whose queue pair still waits for the client's.
    Udp {
        prepared: Option<RdmaBinding>,
    },
    Both,
}

impl fmt::Debug for Roads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roads")
            .field("leases", &self.lock().len())
            .finish_non_exhaustive()
    }
}

impl Roads {
    /// Both roads lead to the same bytes of the same resource.
    #[must_use]
    pub fn new(rdma: Arc<dyn Backend>, udp: Arc<dyn Guest>) -> Self {
        Self {
            rdma,
            udp,
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Keys>> {
        // Nothing panics with the lock held; an entry is whole at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_both(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let over = |transport| BindOrder {
            transport,
            ..order.clone()
        };
        let rdma = match self.rdma.bind(&over(Transport::Rdma)) {
            Ok(binding) => binding,
            Err(error) if is_gone(&error) => {
                return Err(self.close_udp(order.tag, named(error, "RDMA")));
            }
            // An earlier binding goes on over both.
            Err(error) => return Err(named(error, "RDMA")),
        };
        match self.udp.bind(&over(Transport::Udp)) {
            Ok(udp) => Ok(merged(rdma.rdma, udp)),
            Err(error) => Err(self.close_rdma(order, named(error, "UDP"))),
        }
    }

    /// An earlier binding may still be open over UDP.
    fn close_udp(&self, tag: Tag, error: BindError) -> BindError {
        if !self.lock().contains_key(&tag.lease_id) {
            return error;
        }
        let closed = self.udp.cut(tag, Farewell::None).map(drop);
        stranded_unless(closed, error.lost())
    }

    /// What was just bound over RDMA goes, and what is open over UDP since before; so do its claims to the bytes where
    /// nothing is in them yet.
    fn close_rdma(&self, order: &BindOrder, error: BindError) -> BindError {
        let is_new = !self.lock().contains_key(&order.tag.lease_id);
        let closed = self.rdma.cut(order.tag, Farewell::None).map(drop);
        match is_new {
            true => {
                let release = || self.rdma.release(order.tag, order.extent(), &|| ());
                stranded_unless(closed.and_then(|()| release()), error)
            }
            false => self.close_udp(order.tag, stranded_unless(closed, error)),
        }
    }

    /// Notes where the lease has keys now. One that never had a binding is not noted: nothing would
    /// take it off the list.
    fn note(&self, order: &BindOrder, outcome: &Result<Binding, BindError>) {
        let mut known = self.lock();
        match (outcome, known.get_mut(&order.tag.lease_id)) {
            (Ok(binding), _) => {
                known.insert(order.tag.lease_id, Keys::of(order, binding));
            }
            (Err(error), Some(keys)) if is_gone(error) => *keys = Keys::Neither,
            (Err(_), _) => {}
        }
    }

    fn keys(&self, tag: Tag) -> Keys {
        let known = self.lock();
        known.get(&tag.lease_id).cloned().unwrap_or(Keys::Neither)
    }

    /// Who still asks over UDP is told that the end could not be proved.
    fn or_fenced<T>(&self, tag: Tag, outcome: Result<T, StepError>) -> Result<T, StepError> {
        outcome.inspect_err(|_| self.udp.fenced(tag))
    }

    fn retire_udp(&self, tag: Tag) -> Result<(), StepError> {
        self.udp.retire(tag).map_err(over_udp)
    }
}

impl Keys {
    fn of(order: &BindOrder, binding: &Binding) -> Self {
        match order.transport {
            Transport::Udp => Self::Udp { prepared: None },
            Transport::Both if order.peers.is_empty() => Self::Udp {
                prepared: binding.rdma.clone(),
            },
            Transport::Both => Self::Both,
            _ => Self::Rdma,
        }
    }
}

fn merged(rdma: Option<RdmaBinding>, udp: Binding) -> Binding {
    Binding { rdma, ..udp }
}

/// Whether an earlier binding is no more.
fn is_gone(error: &BindError) -> bool {
    matches!(error, BindError::Lost(_) | BindError::Stranded(_))
}

/// Says which of the two roads it was.
fn named(error: BindError, road: &str) -> BindError {
    let named =
        |error: StepError| StepError::new(format!("{road} road: {}", error.step), error.detail);
    match error {
        BindError::Refused(error) => BindError::Refused(named(error)),
        BindError::Failed(error) => BindError::Failed(named(error)),
        BindError::Lost(error) => BindError::Lost(named(error)),
        BindError::Stranded(error) => BindError::Stranded(named(error)),
        BindError::Cancelled => BindError::Cancelled,
    }
}

fn over_udp(error: StepError) -> StepError {
    StepError::new(format!("UDP road: {}", error.step), error.detail)
}

/// A rotation of which one half is done already.
fn left_behind(error: BindError) -> BindError {
    match error {
        BindError::Refused(error) | BindError::Failed(error) => {
            BindError::Stranded(over_udp(error))
        }
        other => named(other, "UDP"),
    }
}

/// The error, if what was open is closed; else what stays is the news.
pub(crate) fn stranded_unless(closed: Result<(), StepError>, error: BindError) -> BindError {
    match (closed, error) {
        (Ok(()), error) | (Err(_), error @ BindError::Stranded(_)) => error,
        (Err(left), _) => BindError::Stranded(left),
    }
}

impl Backend for Roads {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        let udp = self.udp.probe()?;
        let outlives = udp
            .first()
            .map_or(Outlives::Nothing, |offer| offer.outlives);
        let offers = self.rdma.probe()?.into_iter();
        let both = |offer| Offer {
            transports: vec![Transport::Rdma, Transport::Udp, Transport::Both],
            ends: vec![Transport::Udp, Transport::Rdma],
            outlives,
            ..offer
        };
        Ok(offers.map(both).collect())
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let outcome = match order.transport {
            Transport::Udp => self.udp.bind(order),
            Transport::Both => self.bind_both(order),
            _ => self.rdma.bind(order),
        };
        self.note(order, &outcome);
        outcome
    }

    fn extend(&self, tag: Tag, deadline: BootTime) {
        self.rdma.extend(tag, deadline);
        self.udp.extend(tag, deadline);
    }

    fn fenced(&self, tag: Tag) {
        self.rdma.fenced(tag);
        self.udp.fenced(tag);
    }

    /// RDMA first, which may refuse. Should UDP then fail, the new RDMA key is there and nobody
    /// will be told of it: that is something left behind.
    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        match self.keys(tag) {
            Keys::Both => {
                let rdma = self
                    .rdma
                    .rotate(tag)
                    .map_err(|error| named(error, "RDMA"))?;
                let udp = self.udp.rotate(tag).map_err(left_behind)?;
                Ok(merged(rdma.rdma, udp))
            }
            Keys::Udp { prepared } => Ok(merged(prepared, self.udp.rotate(tag)?)),
            Keys::Rdma | Keys::Neither => self.rdma.rotate(tag),
        }
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        match self.keys(tag) {
            Keys::Both => {
                let udp = self.udp.retire_key(tag).map_err(over_udp);
                let rdma = self.rdma.retire_key(tag)?;
                Ok(merged(rdma.rdma, udp?))
            }
            Keys::Udp { prepared } => Ok(merged(prepared, self.udp.retire_key(tag)?)),
            Keys::Rdma | Keys::Neither => self.rdma.retire_key(tag),
        }
    }

    /// Both, whatever comes of the first: a bind may be on its way on either.
    fn cut(&self, tag: Tag, farewell: Farewell) -> Result<Proof, StepError> {
        let udp = self.udp.cut(tag, farewell).map_err(over_udp);
        let rdma = self.rdma.cut(tag, farewell);
        let proof = match (udp, rdma) {
            (Ok(udp), Ok(rdma)) => Ok(udp.and(rdma)),
            (Err(udp), Err(rdma)) => {
                let detail = format!("{}; and {rdma}", udp.detail);
                Err(StepError::new(udp.step, detail))
            }
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        };
        self.or_fenced(tag, proof)
    }

    fn release(&self, tag: Tag, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        let retired = self.retire_udp(tag);
        let released = retired.and_then(|()| self.rdma.release(tag, extent, progress));
        self.or_fenced(tag, released)?;
        self.lock().remove(&tag.lease_id);
        Ok(())
    }

    fn reset(&self, resource_id: ResourceId, leases: &[(Tag, Extent)]) -> Result<(), StepError> {
        let remedied = leases.iter().try_for_each(|(tag, _)| {
            let cut = self.udp.cut(*tag, Farewell::None).map_err(over_udp);
            cut.and_then(|_proof| self.retire_udp(*tag))
        });
        let remedied = remedied.and_then(|()| self.rdma.reset(resource_id, leases));
        for (tag, _) in leases {
            match &remedied {
                Ok(()) => drop(self.lock().remove(&tag.lease_id)),
                Err(_) => self.udp.fenced(*tag),
            }
        }
        remedied
    }
}

#[cfg(test)]
mod tests;
