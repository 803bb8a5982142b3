//! Block storage over NVMe-oF, by the kernel's own target, which configfs controls.
//!
//! Each lease has one subsystem with one namespace and one allowed host, linked to shared ports. The kernel serves
//! the blocks; this crate makes the objects in configfs, removes them, and proves that access has ended. The names of
//! the objects contain the lease id, so that a new process finds them. Objects of others are never touched.
//!
//! Never here: a decision about when a lease ends.
//!
//! Read first: `plan.rs`, the steps of an export; then `cut.rs`, how access ends.

mod batcher;
mod credentials;
mod cut;
mod emergency_revoker;
mod fabrics;
mod fair_lock;
mod host_records;
mod kernel;
mod listed_port;
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
mod rekey;
mod remove;
mod run;
mod secret;
mod steps;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_contract::{Bindings, Revoked};
use fabricbios_helper::{Handler, ReadFirst, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindingId, Proof, StepError};
use fabricbios_wire::{BlockTerms, LeaseId, NodeId, NvmeofTransport, Transport};
use zeroize::Zeroizing;

pub use emergency_revoker::EmergencyRevoker;
pub use host_records::{HOST_RECORD_BYTES_MAX, HostRecords};
pub use names::{belongs_to, maker_of};
pub use path::HostOwners;
pub use probe::ask_rdma_main;
pub use steps::STEPS;

use self::{
    credentials::Credentials, cut::Cut, names::Names, ports::Ports, probe::Prober, proof::Proofs,
};

/// The calls of this crate that may hang, for the helper processes.
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
    /// Its transport.
    pub transport: NvmeofTransport,
    /// Where the kernel listens.
    pub address: SocketAddr,
}

/// Settings of a [`Target`].
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// `/sys/kernel/config/nvmet`.
    pub configfs: PathBuf,
    /// The ports of the option `--nvmet`.
    pub ports: Vec<PortSetting>,
    /// The records of the hosts of earlier runs, whose names and keys stay.
    pub hosts: Vec<Zeroizing<Vec<u8>>>,
    /// Stores the records of this run.
    pub host_records: Arc<dyn HostRecords>,
    /// The node that owns the objects in configfs.
    pub node_id: NodeId,
    /// Starts the helper processes that make [`calls`].
    pub supervisor: Supervisor,
}

/// An export to make: the blocks of one lease.
#[derive(Clone, Debug)]
pub struct Export {
    /// The binding.
    pub binding_id: BindingId,
    /// The tenant. The keys of a host NQN belong to one tenant.
    pub tenant: Arc<str>,
    /// The terms of the lease.
    pub terms: BlockTerms,
    /// The lease's volume: a file or a block device.
    pub volume: PathBuf,
    /// Block size in bytes; the binding contains it for the client.
    pub block_bytes: u32,
    /// [`Transport::NvmeTcp`], [`Transport::NvmeRdma`], or [`Transport::Both`] for every port.
    pub transport: Transport,
    /// Grace of the lease. The time for which a client's kernel tries to reconnect depends on it.
    pub grace: Duration,
}

/// The lease's last export, behind a lock. The calls that make and remove the objects of the lease hold the lock; they
/// may take seconds. They take it before the lease is admitted.
#[derive(Debug, Default)]
struct Work(Mutex<Option<Export>>);

impl Work {
    fn lock(&self) -> MutexGuard<'_, Option<Export>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel's target. Its calls block, and several threads may make calls at once. A call for one lease waits for a
/// call for another lease only where the kernel itself does.
#[derive(Debug)]
pub struct Target {
    tree: Tree,
    names: Names,
    ports: Arc<Ports>,
    credentials: Mutex<Credentials>,
    host_records: Arc<dyn HostRecords>,
    bindings: Bindings<Work>,
    proofs: Proofs,
    owners: Option<Arc<dyn HostOwners>>,
    supervisor: Supervisor,
}

impl Target {
    /// Takes the ports and links the anchor to them, which keeps them listening. If an address does not exist yet, its
    /// port is tried again until it does. Without ports nothing is published, but leases of an earlier run can be cut
    /// and removed.
    ///
    /// # Errors
    /// Something is missing or in use; the error says what and what to do: mount configfs, load a module, or change an
    /// address that another program uses.
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
            Prober::new(Some(config.supervisor.clone())),
        );
        proofs.test_rdma_ports()?;
        Ok(Self {
            tree,
            names,
            ports,
            credentials: Mutex::new(credentials),
            host_records: config.host_records,
            bindings: Bindings::default(),
            proofs,
            owners: None,
            supervisor: config.supervisor,
        })
    }

    /// Checks that the kernel has the target for this transport, or can load it. Changes nothing.
    ///
    /// # Errors
    /// The text says what is missing and what the operator can do.
    pub fn check(configfs: &Path, transport: NvmeofTransport) -> Result<(), StepError> {
        kernel::check(configfs, transport)
    }

    /// Whether this kernel may still serve leases of an earlier run of the node. `configfs` need not exist.
    #[must_use]
    pub fn has_leftovers(configfs: &Path, node_id: NodeId) -> bool {
        let names = Names::new(node_id);
        let subsystems = Tree::new(configfs).list("subsystems").unwrap_or_default();
        let is_left =
            |name: &String| names.lease_of(name).is_some() || names.marked_host(name).is_some();
        subsystems.iter().any(is_left)
    }

    /// The transports of its ports, including ports whose address does not exist yet.
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

    /// Ends access by unlinking the subsystem from every port. Idempotent; also for a lease of an earlier process. A
    /// revoke never waits for the proof of another lease: if many leases end together, all of them are unlinked before
    /// the first one is proved. Depends on no storage.
    ///
    /// # Errors
    /// The subsystem may still be linked, and a host allowed.
    pub fn revoke(&self, binding_id: BindingId) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.revoke(binding_id, |_| self.end_access(lease))
    }

    fn end_access(&self, lease: LeaseId) -> Result<Revoked, StepError> {
        let cut = self.cut_of(lease);
        // The watchdog may have removed the same links meanwhile; then a second try succeeds.
        cut.revoke().or_else(|_concurrent| cut.revoke())
    }

    /// Proves that access has ended. Without `revoked`, asks every port of this node. Cuts of several leases share the
    /// listing and the questions.
    ///
    /// # Errors
    /// A port is linked to the subsystem, a host is allowed, or a port gives a wrong answer or none.
    pub fn verify(
        &self,
        binding_id: BindingId,
        revoked: Option<&Revoked>,
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.verify(
            binding_id,
            revoked,
            |_| self.end_access(lease),
            |_, revoked| self.cut_of(lease).verify(revoked),
        )
    }

    /// Ends access and proves it.
    ///
    /// # Errors
    /// See [`Target::revoke`] and [`Target::verify`].
    pub fn cut(&self, binding_id: BindingId) -> Result<Proof, StepError> {
        let revoked = self.revoke(binding_id)?;
        self.verify(binding_id, Some(&revoked))
    }

    fn cut_of(&self, lease: LeaseId) -> Cut<'_> {
        Cut::of(lease, &self.names, &self.proofs)
    }

    /// All leases of this node that have objects here, complete or not.
    ///
    /// # Errors
    /// The subsystems cannot be listed.
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

    /// Removes the ports, if no lease is linked to them.
    ///
    /// # Errors
    /// An object cannot be removed from configfs.
    pub fn close(self) -> Result<(), StepError> {
        self.ports.close()
    }

    fn credentials(&self) -> MutexGuard<'_, Credentials> {
        self.credentials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Denies access to the directory of hosts to everybody but root. Between the making of a host and the change of its
/// mode, anybody could open the file of its key; whoever has opened the file can read the key at any time.
fn close_hosts(tree: &Tree) -> Result<(), StepError> {
    let closed = tree.set_mode("hosts", 0o700);
    closed.map_err(|error| StepError::new("open nvmet", error))
}

impl Drop for Target {
    fn drop(&mut self) {
        self.ports.stop();
    }
}
