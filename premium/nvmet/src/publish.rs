//! Makes an export. If a step fails, undoes it.

use std::cmp::Reverse;
use std::time::Duration;

use fabricbios_contract::Making;
use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_wire::{
    Endpoint, LeaseId, Nqn, NvmeofAddress, NvmeofBinding, NvmeofTransport, Transport,
};

use super::{
    Export, Target, Work,
    credentials::{Assigned, Credential},
    names::{NAMESPACE, host_path, port_link_path, subsystem_path},
    objects::{Objects, failed},
    plan,
    ports::Port,
    run::{Failed, Run},
    steps,
};

/// A client's kernel tries to reconnect for the grace plus this.
const CTRL_LOSS_MARGIN: Duration = Duration::from_secs(5);
/// A client's kernel keeps a disk without its node no longer than this.
const CTRL_LOSS_MAX: Duration = Duration::from_secs(30);

pub(super) fn refused(detail: impl std::fmt::Display) -> BindError {
    BindError::Refused(StepError::new("publish", detail))
}

/// Why an export was not made.
enum PublishError {
    Failed {
        error: StepError,
        /// Whether a call still waits in the kernel.
        is_stuck: bool,
    },
    /// A cut came first.
    Cut,
}

impl From<BindError> for PublishError {
    fn from(not_opened: BindError) -> Self {
        match not_opened {
            BindError::Stranded(error) => Self::Failed {
                error,
                is_stuck: true,
            },
            _ => Self::Cut,
        }
    }
}

impl From<Failed> for PublishError {
    fn from(failed: Failed) -> Self {
        Self::Failed {
            is_stuck: failed.error.stuck,
            error: failed.into(),
        }
    }
}

impl Target {
    /// Makes the objects of the export that do not exist yet. Existing objects stay unchanged, even with a client
    /// connected, and a lease keeps its names and keys. Makes no link to a port after a [`Target::cut`] of the same or
    /// a newer generation has begun; the proof of that cut waits for at most one link.
    ///
    /// # Errors
    /// `Refused`: the terms or the volume cannot be exported. `Cancelled`: a cut came first. `Failed`: a step failed,
    /// and everything was undone. `Stranded`: a step could not be undone.
    pub fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        let binding_id = export.binding_id;
        let making = self.bindings.begin_unguarded(binding_id, &export.tenant)?;
        let mut work = making.objects().lock();
        let published = self.publish_in(&making, export)?;
        *work = Some(export.clone());
        Ok(published)
    }

    fn publish_in(
        &self,
        making: &Making<'_, Work>,
        export: &Export,
    ) -> Result<NvmeofBinding, BindError> {
        making.check()?;
        let device_path = volume_path(export)?;
        let ports = self.ports_for(export)?;
        let assigned = self.assign_credential(export)?;
        let credential = &assigned.credential;
        let mut run = Run::new(self);
        let subsystem = self.names.subsystem(export.binding_id.lease_id);
        let lease = export.binding_id.lease_id;
        let volume = export.volume.clone();
        let mark = self.names.host_mark(&credential.host_nqn);
        let steps = plan::export(lease, &subsystem, volume, device_path, &mark, credential);
        let numbers = ports.iter().map(|port| port.number);
        let links = plan::links(&subsystem, credential.host_nqn.as_str(), numbers);
        steps::passed("write credentials");
        let made = run.take_all(&steps).map_err(PublishError::from);
        // Each link opens access by itself. Links are made one at a time: the proof of a cut waits for at most one.
        let mut link = |it| making.beside(|| run.take(it).map_err(PublishError::from));
        let made = made.and_then(|()| links.iter().try_for_each(&mut link));
        match made {
            Ok(()) => self
                .binding(export, credential, &ports)
                .map_err(BindError::Failed),
            Err(stopped) => Err(self.undo_publish(lease, run, &assigned, stopped)),
        }
    }

    /// The coordinates of an exported lease for the client.
    ///
    /// # Errors
    /// The lease has no export here, or the kernel's objects cannot be read.
    pub fn binding_of(&self, binding_id: BindingId) -> Result<NvmeofBinding, StepError> {
        let nothing = || {
            StepError::new(
                "look at export",
                format_args!("{binding_id} has no export on this node"),
            )
        };
        let entry = self.bindings.entry(binding_id.lease_id);
        let entry = entry.ok_or_else(nothing)?;
        let work = entry.objects.lock();
        let export = work.as_ref().ok_or_else(nothing)?;
        let credential = self.credentials().find(binding_id.lease_id).cloned();
        let ports = self.linked_ports(binding_id)?;
        self.binding(export, &credential.ok_or_else(nothing)?, &ports)
    }

    /// The ports to which the lease is linked. A port that began to listen later has no link to the lease.
    pub(super) fn linked_ports(&self, binding_id: BindingId) -> Result<Vec<&Port>, StepError> {
        let subsystem = self.names.subsystem(binding_id.lease_id);
        let linked = |port: &Port| self.tree.exists(port_link_path(port.number, &subsystem));
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

    fn assign_credential(&self, export: &Export) -> Result<Assigned, BindError> {
        let exists = |path: &str| {
            let exists = Objects::exists(self, path);
            exists.map_err(|error| StepError::new("host", error))
        };
        let foreign = |host: &Nqn| {
            let mark = subsystem_path(&self.names.host_mark(host));
            Ok(exists(&host_path(host.as_str()))? && !exists(&mark)?)
        };
        let lease = export.binding_id.lease_id;
        let mut credentials = self.credentials();
        credentials.assign(lease, &export.tenant, &export.terms, foreign)
    }

    fn undo_publish(
        &self,
        lease: LeaseId,
        run: Run<'_, Target>,
        assigned: &Assigned,
        stopped: PublishError,
    ) -> BindError {
        let undone = run.undo().and_then(|()| match assigned.is_new {
            true => {
                let mut credentials = self.credentials();
                credentials.release(lease, |host| self.remove_host(host))
            }
            false => Ok(()),
        });
        match (undone, stopped) {
            (Ok(()), PublishError::Cut) => BindError::Cancelled,
            (Ok(()), PublishError::Failed { error, is_stuck }) => match is_stuck {
                true => BindError::Stranded(error),
                false => BindError::Failed(error),
            },
            (Err(left), PublishError::Cut) => BindError::Stranded(left),
            (Err(left), PublishError::Failed { error, .. }) => {
                let detail = format!("{}; then {left}", error.detail);
                BindError::Stranded(StepError { detail, ..error })
            }
        }
    }

    pub(super) fn binding(
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

/// The path of the volume, after checks.
fn volume_path(export: &Export) -> Result<&str, BindError> {
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
