//! Makes an export, or takes it back when that does not work out.

use std::cmp::Reverse;
use std::time::Duration;

use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_wire::{Endpoint, Nqn, NvmeofAddress, NvmeofBinding, NvmeofTransport, Transport};

use super::{
    Export, Target,
    credentials::{Credential, Credentials, Taken},
    faults,
    names::{NAMESPACE, host_at, link_at, subsystem_at},
    objects::{Objects, failed},
    plan,
    ports::Port,
    run::{Failed, Run},
    slots::Slot,
};

/// How long a client's kernel goes on after it lost a connection: through the grace, and a moment longer.
const CTRL_LOSS_MARGIN: Duration = Duration::from_secs(5);
/// No disk without a node for longer than this.
const CTRL_LOSS_MAX: Duration = Duration::from_secs(30);

fn refused(detail: impl std::fmt::Display) -> BindError {
    BindError::Refused(StepError::new("publish", detail))
}

/// Why an export was not made.
enum Stopped {
    Failed {
        error: StepError,
        /// The kernel has not come back from it.
        is_stuck: bool,
    },
    /// A cut came first.
    Cut,
}

impl From<Failed> for Stopped {
    fn from(failed: Failed) -> Self {
        Self::Failed {
            is_stuck: failed.trouble.stuck,
            error: failed.into(),
        }
    }
}

impl Target {
    /// Makes the export, or as much of it as is not there yet; what is there and as it should be stays as
    /// it is, also under a connected client. Same names and keys as before for a lease that had some. Never
    /// links to a port after a [`Target::cut`] of the same or a newer generation has begun.
    pub fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        let slot = self.slots.of(export.binding_id.lease_id);
        let mut work = slot.work();
        let result = self.publish_in(&slot, export);
        match &result {
            Ok(_) => {
                *work = Some(export.clone());
                self.slots.keep(export.binding_id.lease_id);
            }
            Err(_) => self.slots.forget_later(export.binding_id.lease_id),
        }
        result
    }

    fn publish_in(&self, slot: &Slot, export: &Export) -> Result<NvmeofBinding, BindError> {
        if !slot.gate().begin(export.binding_id.generation) {
            return Err(BindError::Cancelled);
        }
        let device_path = acceptable(export)?;
        let ports = self.ports_for(export)?;
        let taken = self.take_credential(export)?;
        let credential = &taken.credential;
        let mut run = Run::new(self);
        let subsystem = self.names.subsystem(export.binding_id.lease_id);
        let lease = export.binding_id.lease_id;
        let volume = export.volume.clone();
        let mark = self.names.mark(&credential.host_nqn);
        let steps = plan::export(lease, &subsystem, volume, device_path, &mark, credential);
        let numbers = ports.iter().map(|port| port.number);
        let links = plan::links(&subsystem, credential.host_nqn.as_str(), numbers);
        faults::passed("write credentials");
        let made = run.take_all(&steps).map_err(Stopped::from);
        let made = made.and_then(|()| open_all(slot, export.binding_id, &links, &mut run));
        match made {
            Ok(()) => self
                .binding(export, credential, &ports)
                .map_err(BindError::Failed),
            Err(stopped) => Err(self.take_back(export.binding_id, run, &taken, stopped)),
        }
    }

    /// New keys for the next connection; a live one goes on. Where another lease of the tenant has the same
    /// host NQN, that is refused: it would lose its key.
    pub fn rekey(&self, binding_id: BindingId) -> Result<NvmeofBinding, BindError> {
        let slot = self.slots.of(binding_id.lease_id);
        let work = slot.work();
        let nothing = || {
            refused(format_args!(
                "{binding_id} has no export here to give new keys to"
            ))
        };
        let export = work.as_ref().ok_or_else(nothing)?;
        if !slot.gate().admits(binding_id.generation) {
            return Err(BindError::Cancelled);
        }
        let mut credentials = self.credentials();
        let old = credentials
            .of(binding_id.lease_id)
            .cloned()
            .ok_or_else(nothing)?;
        let new = credentials.renewed(binding_id.lease_id)?;
        let written = Run::new(self).take_all(&plan::rekey(&new));
        let kept = written
            .map_err(StepError::from)
            .and_then(|()| credentials.keep(new.clone()));
        // Nobody else comes to use a key that may have to go again.
        let number = kept.map(|()| self.host_records.submit());
        if let Err(error) = number.and_then(|number| self.host_records.wait(number)) {
            return Err(self.restore_keys(&mut credentials, old, error));
        }
        faults::passed("rekey credentials");
        drop(credentials);
        let ports = self.linked_ports(binding_id).map_err(BindError::Stranded)?;
        self.binding(export, &new, &ports)
            .map_err(BindError::Failed)
    }

    /// What a client needs to know of a lease that has an export.
    ///
    /// # Errors
    /// It has none here.
    pub fn binding_of(&self, binding_id: BindingId) -> Result<NvmeofBinding, StepError> {
        let slot = self.slots.of(binding_id.lease_id);
        let work = slot.work();
        let nothing =
            || StepError::new("look at export", format_args!("{binding_id} has none here"));
        let export = work.as_ref().ok_or_else(nothing)?;
        let credential = self.credentials().of(binding_id.lease_id).cloned();
        let ports = self.linked_ports(binding_id)?;
        self.binding(export, &credential.ok_or_else(nothing)?, &ports)
    }

    fn restore_keys(
        &self,
        credentials: &mut Credentials,
        old: Credential,
        error: StepError,
    ) -> BindError {
        let back = Run::new(self).take_all(&plan::rekey(&old));
        let back = back.map_err(StepError::from);
        match back.and_then(|()| credentials.keep(old)) {
            Ok(()) => {
                let _not_waited_for = self.host_records.submit();
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

    /// Those that the lease was given; one that joined later has no link of it.
    fn linked_ports(&self, binding_id: BindingId) -> Result<Vec<&Port>, StepError> {
        let subsystem = self.names.subsystem(binding_id.lease_id);
        let linked = |port: &Port| self.tree.exists(link_at(port.number, &subsystem));
        let mut ports = Vec::new();
        for port in &self.ports.list {
            let linked = linked(port).map_err(|error| failed("look at ports", error));
            if linked? {
                ports.push(port);
            }
        }
        best_first(&mut ports);
        Ok(ports)
    }

    fn ports_for(&self, export: &Export) -> Result<Vec<&Port>, BindError> {
        let wanted = |port: &&Port| match export.transport {
            Transport::NvmeTcp => port.setting.transport == NvmeofTransport::Tcp,
            Transport::NvmeRdma => port.setting.transport == NvmeofTransport::Rdma,
            Transport::Auto | Transport::Both => true,
            Transport::Rdma | Transport::Udp => false,
        };
        let fitting: Vec<_> = self.ports.list.iter().filter(wanted).collect();
        if fitting.is_empty() {
            let transport = export.transport;
            return Err(refused(format_args!(
                "no port of this node is for {transport:?}"
            )));
        }
        let mut ports: Vec<_> = fitting.into_iter().filter(|port| port.listens()).collect();
        if ports.is_empty() {
            return Err(BindError::Failed(StepError::new(
                "publish",
                "no port listens yet: the addresses do not exist",
            )));
        }
        best_first(&mut ports);
        Ok(ports)
    }

    fn take_credential(&self, export: &Export) -> Result<Taken, BindError> {
        let exists = |path: &str| {
            let exists = Objects::exists(self, path);
            exists.map_err(|trouble| StepError::new("host", trouble))
        };
        let foreign = |host: &Nqn| {
            let mark = subsystem_at(&self.names.mark(host));
            Ok(exists(&host_at(host.as_str()))? && !exists(&mark)?)
        };
        let lease = export.binding_id.lease_id;
        let mut credentials = self.credentials();
        credentials.take(lease, &export.tenant, &export.terms, foreign)
    }

    fn take_back(
        &self,
        binding_id: BindingId,
        run: Run<'_, Target>,
        taken: &Taken,
        stopped: Stopped,
    ) -> BindError {
        let undone = run.undo().and_then(|()| match taken.is_new {
            true => {
                let mut credentials = self.credentials();
                credentials.leave(binding_id.lease_id, |host| self.remove_host(host))
            }
            false => Ok(()),
        });
        match (undone, stopped) {
            (Ok(()), Stopped::Cut) => BindError::Cancelled,
            (Ok(()), Stopped::Failed { error, is_stuck }) => match is_stuck {
                true => BindError::Stranded(error),
                false => BindError::Failed(error),
            },
            (Err(left), Stopped::Cut) => BindError::Stranded(left),
            (Err(left), Stopped::Failed { error, .. }) => {
                let detail = format!("{}; then {left}", error.detail);
                BindError::Stranded(StepError { detail, ..error })
            }
        }
    }

    fn binding(
        &self,
        export: &Export,
        credential: &Credential,
        ports: &[&Port],
    ) -> Result<NvmeofBinding, StepError> {
        let address = |port: &&Port| NvmeofAddress {
            transport: port.setting.transport,
            endpoint: Endpoint::from(port.setting.address),
        };
        let subsystem = self.names.subsystem(export.binding_id.lease_id).parse();
        let ctrl_loss = export
            .grace
            .saturating_add(CTRL_LOSS_MARGIN)
            .min(CTRL_LOSS_MAX);
        Ok(NvmeofBinding {
            addresses: ports.iter().map(address).collect(),
            subsystem: subsystem.map_err(|error| StepError::new("name of subsystem", error))?,
            nsid: NAMESPACE,
            host_nqn: credential.host_nqn.clone(),
            host_id: credential.host_id,
            dhchap_secret: credential.secret.clone(),
            dhchap_ctrl_secret: credential
                .ctrl_secret
                .clone()
                .filter(|_| export.terms.mutual_auth),
            ctrl_loss_secs: u32::try_from(ctrl_loss.as_secs()).unwrap_or(u32::MAX),
            block_bytes: export.block_bytes,
        })
    }
}

fn best_first(ports: &mut [&Port]) {
    ports.sort_by_key(|port| Reverse(port.setting.transport == NvmeofTransport::Rdma));
}

/// The volume's path as the kernel is to have it.
fn acceptable(export: &Export) -> Result<&str, BindError> {
    if export.terms.read_only {
        return Err(refused(
            "the kernel's target writes to whatever it exports: use --transport udp for a read-only lease",
        ));
    }
    let path = export.volume.to_str().filter(|path| !path.contains('\n'));
    path.ok_or_else(|| {
        let shown = export.volume.display();
        BindError::Failed(StepError::new(
            "publish",
            format_args!("no path for the kernel: {shown}"),
        ))
    })
}

/// A cut waits for one link at most, and none is made behind it.
fn open_all(
    slot: &Slot,
    binding_id: BindingId,
    links: &[plan::Step],
    run: &mut Run<'_, Target>,
) -> Result<(), Stopped> {
    for link in links {
        let mut gate = slot.gate();
        gate.open(binding_id.generation)
            .map_err(|_shut| Stopped::Cut)?;
        run.take(link)?;
    }
    Ok(())
}
