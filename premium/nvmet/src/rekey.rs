//! Changes the keys of an exported lease.

use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_wire::NvmeofBinding;

use super::{
    Target,
    credentials::{Credential, Credentials},
    plan,
    publish::refused,
    run::Run,
    steps,
};

impl Target {
    /// Makes new keys for later connections; a live connection goes on.
    ///
    /// # Errors
    /// `Refused`: the lease has no export here, or another lease of the tenant uses the same host NQN and would lose
    /// its key. `Failed`: the old key is restored. `Stranded`: it is not.
    pub fn rekey(&self, binding_id: BindingId) -> Result<NvmeofBinding, BindError> {
        let entry = self.bindings.entry(binding_id.lease_id);
        let entry = entry.ok_or(BindError::Cancelled)?;
        let work = entry.objects.lock();
        let nothing = || {
            refused(format_args!(
                "{binding_id} has no export on this node, so there is no key to change"
            ))
        };
        let export = work.as_ref().ok_or_else(nothing)?;
        if !entry.admits(binding_id.generation) {
            return Err(BindError::Cancelled);
        }
        let mut credentials = self.credentials();
        let old = credentials
            .find(binding_id.lease_id)
            .cloned()
            .ok_or_else(nothing)?;
        let new = credentials.with_new_keys(binding_id.lease_id)?;
        let written = Run::new(self).take_all(&plan::rekey(&new));
        let kept = written
            .map_err(StepError::from)
            .and_then(|()| credentials.store(new.clone()));
        // The lock of the credentials is held meanwhile: no other lease may use a key that may be taken back.
        let number = kept.map(|()| self.host_records.submit());
        if let Err(error) = number.and_then(|number| self.host_records.wait(number)) {
            return Err(self.restore_keys(&mut credentials, old, error));
        }
        steps::passed("rekey credentials");
        drop(credentials);
        let ports = self.linked_ports(binding_id).map_err(BindError::Stranded)?;
        self.binding(export, &new, &ports)
            .map_err(BindError::Failed)
    }

    fn restore_keys(
        &self,
        credentials: &mut Credentials,
        old: Credential,
        error: StepError,
    ) -> BindError {
        let back = Run::new(self).take_all(&plan::rekey(&old));
        let back = back.map_err(StepError::from);
        match back.and_then(|()| credentials.store(old)) {
            Ok(()) => {
                let _number = self.host_records.submit();
                BindError::Failed(error)
            }
            Err(failed) => BindError::Stranded(StepError {
                detail: format!(
                    "{}; and the old key is not back: {}",
                    error.detail, failed.detail
                ),
                ..error
            }),
        }
    }
}
