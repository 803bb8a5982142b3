//! Ending access over all paths of a lease.

use fabricbios_lease::{BindingId, Linger, Proof, StepError};

use super::{PathEntry, Provider};
use crate::Revoked;

/// A cut after `revoke`: access has ended on every path without an error.
#[derive(Debug)]
pub struct Cut {
    binding_id: BindingId,
    /// The result of each path, by its index.
    revoked: Vec<(usize, Result<Revoked, StepError>)>,
}

impl Cut {
    /// Whether the proof is already there.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        let is_proved = |revoked: &Revoked| revoked.is_proved;
        let mut all = self.revoked.iter();
        all.all(|(_, it)| it.as_ref().is_ok_and(is_proved))
    }
}

impl Provider {
    /// Ends access over every path of the lease, also after a failure. Waits for no binding and for no proof.
    pub fn revoke(&self, binding_id: BindingId, linger: Linger) -> Cut {
        let paths = self.of(binding_id.lease_id).rev();
        Cut {
            binding_id,
            revoked: paths
                .map(|(at, it)| (at, it.path.revoke(binding_id, linger)))
                .collect(),
        }
    }

    /// Proves that access has ended.
    ///
    /// # Errors
    /// Some path has no proof.
    pub fn verify(&self, cut: Cut) -> Result<Proof, StepError> {
        let Cut {
            binding_id,
            revoked,
        } = cut;
        let several = revoked.len() > 1;
        let mut all: Result<Option<Proof>, StepError> = Ok(None);
        for (at, revoked) in revoked {
            let PathEntry { path, name, .. } = &self.paths[at];
            let proof = revoked.and_then(|revoked| path.verify(binding_id, Some(&revoked)));
            let proof = proof.map_err(|error| if several { error.over(name) } else { error });
            all = match (all, proof) {
                (Ok(None), Ok(proof)) => Ok(Some(proof)),
                (Ok(Some(before)), Ok(proof)) => Ok(Some(before.and(proof))),
                (Err(before), Err(error)) => {
                    let detail = format!("{}; and {error}", before.detail);
                    Err(StepError { detail, ..before })
                }
                (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            };
        }
        let nothing = || Proof::nothing_to_cut("no path leads to it");
        let proof = all.map(|proof| {
            let proof = proof.filter(|it| !it.steps().is_empty());
            proof.unwrap_or_else(nothing)
        });
        self.or_fenced(binding_id, proof)
    }

    /// [`Provider::revoke`] and [`Provider::verify`].
    ///
    /// # Errors
    /// The end of access is not proved.
    pub fn cut(&self, binding_id: BindingId, linger: Linger) -> Result<Proof, StepError> {
        self.verify(self.revoke(binding_id, linger))
    }

    /// Cuts every path of the provider, also for an unknown lease.
    pub(super) fn cut_by_name(&self, binding_id: BindingId) -> Result<Proof, StepError> {
        let paths = self.paths.iter().enumerate().rev();
        let revoke = |(at, it): (usize, &PathEntry)| (at, it.path.revoke(binding_id, Linger::None));
        self.verify(Cut {
            binding_id,
            revoked: paths.map(revoke).collect(),
        })
    }
}
