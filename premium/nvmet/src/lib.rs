//! Block storage over NVMe-oF: the kernel's own target, through configfs.
//!
//! Per lease one subsystem with one namespace and one host that may connect, linked to shared ports. The
//! kernel serves; this room makes, proves and unmakes. What it makes carries the lease's id in its name,
//! so that a new process finds it; objects of others are never touched.

mod credentials;
mod cut;
mod fabrics;
mod faults;
mod host_records;
mod kernel;
mod names;
mod namespace;
mod nvme_rdma;
mod nvme_tcp;
mod objects;
mod path;
mod plan;
mod ports;
mod probe;
mod proof;
mod publish;
mod remove;
mod rounds;
mod run;
mod secret;
mod shutter;
mod slots;
mod survey;
mod turns;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_contract::Revoked;
use fabricbios_helper::{Handler, ReadFirst, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindingId, Proof, StepError};
use fabricbios_wire::{BlockTerms, LeaseId, NodeId, NvmeofTransport, Transport};
use zeroize::Zeroizing;

pub use faults::STEPS;
pub use host_records::{HOST_RECORD_BYTES_MAX, HostRecords, check_host_record};
pub use names::{belongs_to, maker_of};
pub use path::Guard;
pub use probe::ask_rdma_main;
pub use shutter::Shutter;

use self::{
    credentials::Credentials, cut::Cut, names::Names, ports::Ports, probe::Asker, proof::Proofs,
    slots::Slots,
};

/// Calls of this room that may hang, for the process that makes them.
#[must_use]
pub fn calls() -> Vec<Handler> {
    vec![
        Handler::of::<ReadFirst>(),
        Handler::of::<namespace::RemoveNamespace>(),
        Handler::of::<kernel::LoadModule>(),
        Handler::of::<probe::AskRdma>(),
    ]
}

/// A port that all leases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSetting {
    /// Over what.
    pub transport: NvmeofTransport,
    /// Where the kernel listens.
    pub address: SocketAddr,
}

/// What the operator says, and where things are.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// `/sys/kernel/config/nvmet`.
    pub configfs: PathBuf,
    /// `--nvmet`.
    pub ports: Vec<PortSetting>,
    /// Records of hosts of earlier runs, whose names and keys go on.
    pub hosts: Vec<Zeroizing<Vec<u8>>>,
    /// Keeps those of this run.
    pub host_records: Arc<dyn HostRecords>,
    /// Whose objects these are.
    pub node_id: NodeId,
    /// Who makes [`calls`].
    pub supervisor: Supervisor,
}

/// What is to be connected to.
#[derive(Clone, Debug)]
pub struct Export {
    /// Which binding of which lease.
    pub binding_id: BindingId,
    /// Keys of a host NQN belong to one tenant.
    pub tenant: Arc<str>,
    /// What was asked for.
    pub terms: BlockTerms,
    /// The lease's blocks: a file or a block device.
    pub volume: PathBuf,
    /// Bytes of a block, for the binding.
    pub block_bytes: u32,
    /// [`Transport::NvmeTcp`], [`Transport::NvmeRdma`], or [`Transport::Both`] for every port.
    pub transport: Transport,
    /// Of the lease: what a client's kernel may wait for is counted from it.
    pub grace: Duration,
}

/// The kernel's target. Blocking; called from several threads at once; a call for one lease waits for a
/// call for another only where the kernel itself does.
#[derive(Debug)]
pub struct Target {
    tree: Tree,
    names: Names,
    ports: Arc<Ports>,
    credentials: Mutex<Credentials>,
    host_records: Arc<dyn HostRecords>,
    slots: Slots,
    proofs: Proofs,
    guard: Option<Arc<dyn Guard>>,
    supervisor: Supervisor,
}

impl Target {
    /// Takes the ports, with an anchor that keeps them listening. Errors say what is missing and what to
    /// do about it: configfs to mount, a module to load, an address that is taken. An address that does
    /// not exist yet is no error: it is tried until it does. Without ports nothing is published, and what
    /// an earlier run left can be cut and removed.
    pub fn open(config: TargetConfig) -> Result<Self, StepError> {
        kernel::make_ready(&config.configfs, &config.supervisor)?;
        let credentials = Credentials::open(&config.hosts, Arc::clone(&config.host_records))?;
        let tree = Tree::new(config.configfs);
        close_hosts(&tree)?;
        let names = Names::new(config.node_id);
        let ports = Ports::open(&tree, names.anchor(), &config.ports)?;
        let proofs = Proofs::new(
            tree.clone(),
            names.anchor(),
            Asker::new(Some(config.supervisor.clone())),
        );
        proofs.try_to_ask()?;
        Ok(Self {
            tree,
            names,
            ports,
            credentials: Mutex::new(credentials),
            host_records: config.host_records,
            slots: Slots::default(),
            proofs,
            guard: None,
            supervisor: config.supervisor,
        })
    }

    /// Whether leases of an earlier run of this node may still be served by this kernel. Needs nothing
    /// to be there.
    #[must_use]
    pub fn has_leftovers(configfs: &Path, node_id: NodeId) -> bool {
        let names = Names::new(node_id);
        let subsystems = Tree::new(configfs).list("subsystems").unwrap_or_default();
        let is_left =
            |name: &String| names.lease_of(name).is_some() || names.marked(name).is_some();
        subsystems.iter().any(is_left)
    }

    /// Transports that its ports are, also of those whose address does not exist yet.
    #[must_use]
    pub fn transports(&self) -> Vec<Transport> {
        let mut transports = vec![
            (NvmeofTransport::Rdma, Transport::NvmeRdma),
            (NvmeofTransport::Tcp, Transport::NvmeTcp),
        ];
        let ports = &self.ports.list;
        transports.retain(|(wanted, _)| ports.iter().any(|it| it.setting.transport == *wanted));
        transports.into_iter().map(|(_, it)| it).collect()
    }

    /// Ends access, by unlinking from every port, and proves nothing yet. Idempotent; also for a lease of an earlier
    /// process. It never waits for the proof of another lease; so where many leases end together, all of them end
    /// before the first one is proved. Depends on no storage.
    ///
    /// # Errors
    /// The subsystem may still be linked, and a host allowed.
    pub fn revoke(&self, binding_id: BindingId) -> Result<Revoked, StepError> {
        let slot = self.slots.of(binding_id.lease_id);
        let mut gate = slot.gate();
        match gate.revoke(binding_id.generation) {
            Err(moved_on) => Ok(Revoked::proved(moved_on.into())),
            Ok(()) => {
                let cut = self.cut_of(binding_id);
                // The watchdog may have been at the same links; nothing is wrong with that.
                cut.revoke().or_else(|_met_somebody| cut.revoke())
            }
        }
    }

    /// Proves that access has ended. Without `revoked` it looks at every port of this node. Cuts of several leases
    /// share the proof.
    ///
    /// # Errors
    /// A port has the subsystem, a host is allowed, or a port answers otherwise than it should.
    pub fn verify(
        &self,
        binding_id: BindingId,
        revoked: Option<&Revoked>,
    ) -> Result<Proof, StepError> {
        let slot = self.slots.of(binding_id.lease_id);
        if let Err(moved_on) = slot.gate().check_current(binding_id.generation) {
            return Ok(moved_on.into());
        }
        let proof = self.cut_of(binding_id).verify(revoked)?;
        slot.gate().ended(binding_id.generation);
        Ok(proof)
    }

    /// Ends access and proves it.
    ///
    /// # Errors
    /// See [`Target::revoke`] and [`Target::verify`].
    pub fn cut(&self, binding_id: BindingId) -> Result<Proof, StepError> {
        let revoked = self.revoke(binding_id)?;
        self.verify(binding_id, Some(&revoked))
    }

    fn cut_of(&self, binding_id: BindingId) -> Cut<'_> {
        Cut::of(binding_id.lease_id, &self.names, &self.proofs)
    }

    /// Every lease of this node of which there is something, whole or half made.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let subsystems = self.tree.list("subsystems");
        let subsystems =
            subsystems.map_err(|error| objects::failed("look at subsystems", error))?;
        let named = subsystems
            .iter()
            .filter_map(|name| self.names.lease_of(name));
        let mut leases: Vec<LeaseId> = named.chain(self.credentials().leases()).collect();
        leases.sort_unstable();
        leases.dedup();
        Ok(leases)
    }

    /// Gives the ports back, if no lease is linked to them.
    pub fn close(self) -> Result<(), StepError> {
        self.ports.close()
    }

    fn credentials(&self) -> MutexGuard<'_, Credentials> {
        self.credentials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host's key can be opened by anybody from when the host is made until its mode is changed, and read at
/// any time by who has opened it: so nobody but root gets there.
fn close_hosts(tree: &Tree) -> Result<(), StepError> {
    let closed = tree.set_mode("hosts", 0o700);
    closed.map_err(|error| StepError::new("open nvmet", error))
}

impl Drop for Target {
    fn drop(&mut self) {
        self.ports.stop();
    }
}
