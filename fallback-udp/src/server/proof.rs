//! Ends access and proves it: the server is sent a PING as a client would send it, and must answer NO_LEASE.
//!
//! The PING goes the way of every datagram ([`Leases::dispatch`](super::leases::Leases::dispatch)), so the proof tests
//! the server itself and not a record of its state.

use std::{mem, net::Ipv4Addr, time::Instant};

use fabricbios_lease::{BindingId, Proof, StepError};
use fabricbios_wire::{
    DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, DataStatus, LeaseId,
};

use super::{
    binding_state::{BindingState, Phase},
    entry::{Content, Entry},
    serving::Outcome,
    udp_path::UdpPath,
};
use crate::{Begin, DataKey, begin};

impl<C: Content> UdpPath<C> {
    /// Ends access, if there is any, and returns the proof. The phase is Cut or Failed after that.
    pub(super) fn end(
        &self,
        state: &mut BindingState<C>,
        binding_id: BindingId,
    ) -> Result<Proof, StepError> {
        match mem::take(&mut state.phase) {
            Phase::Live(entry) | Phase::Failed { entry, .. } => {
                state.key = None;
                let ended = self.prove_over(&entry, binding_id);
                state.phase = match &ended {
                    Ok(proof) => {
                        state.gate.ended(binding_id.generation);
                        Phase::Cut {
                            proof: proof.clone(),
                            entry,
                        }
                    }
                    Err(error) => Phase::Failed {
                        error: error.clone(),
                        entry,
                    },
                };
                ended
            }
            other => {
                let why = why_unreachable(&other);
                state.phase = other;
                Ok(why)
            }
        }
    }

    fn prove_over(&self, entry: &Entry<C>, binding_id: BindingId) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let started = Instant::now();
        entry.end();
        let (end, ping) = match C::SERVICE {
            DataService::Memory => ("FBMU end", "FBMU PING under its key"),
            DataService::Block => ("FBBU end", "FBBU PING under its key"),
        };
        proof.add(end, started.elapsed(), "nothing in progress");
        // A copy, since the server takes the lock of the keys when it answers the PING.
        let keys = entry.keys().clone();
        for key in keys.iter() {
            let sent = Instant::now();
            let answered = self.ask_as_client(binding_id.lease_id, key);
            if answered != Answered::Status(DataStatus::NoLease) {
                let detail =
                    format!("{binding_id}: PING under its key got {answered:?}, not NO_LEASE");
                return Err(StepError::new("prove over", detail));
            }
            proof.add(ping, sent.elapsed(), DataStatus::NoLease);
        }
        entry.check_invariants()?;
        Ok(proof)
    }

    /// Removes the previous key, if there is one, and proves that it does not work.
    pub(super) fn prove_retired(&self, entry: &Entry<C>) -> Result<(), StepError> {
        let retired = entry.keys_alone().retire();
        let Some(old) = retired else {
            return Ok(());
        };
        match self.ask_as_client(entry.binding_id.lease_id, &old) {
            Answered::Unauthenticated => Ok(()),
            answered => {
                let detail = format!(
                    "{}: PING under the old key got {answered:?}",
                    entry.binding_id
                );
                Err(StepError::new("prove retired", detail))
            }
        }
    }

    pub(super) fn ask_as_client(&self, lease_id: LeaseId, key: &DataKey) -> Answered {
        let ping = DataHeader::request(C::SERVICE, DataOp::Ping, lease_id);
        let question = key.seal(ping, &[]);
        let mut reply = [0; DATAGRAM_MAX];
        let source = Ipv4Addr::LOCALHOST.into();
        let outcome = self
            .leases
            .dispatch(&question, source, |entry, keys, request| {
                begin(&**entry, keys, request, false, &mut reply)
            });
        match outcome {
            Outcome::Unauthenticated(_) => Answered::Unauthenticated,
            Outcome::Handled(Begin::Reply(answer)) => Answered::read(&reply[..answer.length], key),
            Outcome::Nothing | Outcome::Handled(_) => Answered::Nothing,
        }
    }
}

/// The answer to the PING, as a client understands it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Nothing,
    Unauthenticated,
    Nonsense,
    Status(DataStatus),
}

impl Answered {
    fn read(reply: &[u8], key: &DataKey) -> Self {
        let Ok(frame) = DataFrame::parse(reply) else {
            return Self::Nonsense;
        };
        let is_right = frame.header.is_reply() && key.verifies(&frame);
        let status = DataStatus::from_byte(frame.header.status);
        status
            .filter(|_| is_right)
            .map_or(Self::Nonsense, Self::Status)
    }
}

pub(super) fn why_unreachable<C>(phase: &Phase<C>) -> Proof {
    match phase {
        Phase::Cut { proof, .. } => proof.clone(),
        Phase::Empty => Proof::nothing_to_cut("the lease was never bound"),
        _ => Proof::nothing_to_cut("the lease was cut before"),
    }
}
