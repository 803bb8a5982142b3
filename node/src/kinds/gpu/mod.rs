//! GPUs on offer.

pub(super) mod detect;
mod offer;
mod settings;
mod wanted;

pub use settings::{GpuSettings, GpuShareMode};
pub use wanted::WantedGpus;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{anyhow, bail};
use fabricbios_contract::{EndByName, Provider, stray_binding_id};
use fabricbios_control::{NoSessions, Principal, SessionConnector, SessionOpen};
use fabricbios_gpu::{
    Device, GpuConfig, GpuEnd, GpuPath, GpuStore, Gpus, Health, Libraries,
    management::{HealthWatch, discover},
    worker::Trial,
};
use fabricbios_kernfs::mounts;
use fabricbios_wire::{NodeId, Refusal, ResourceId, ResourceType, Size, Transport};
use nix::unistd::geteuid;

use self::offer::{OfferedGpu, offer, session_slots};
use crate::{
    kinds::{
        Continuity, Ending, Kind, Offered, OfferedResource, Opened, Opening, cdi, own_program,
        settings::SharedSettings,
    },
    process::{
        check::{Checking, Findings},
        descriptors,
    },
};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Gpu,
    conflicts: settings::conflicts,
    datagrams: |_| None,
    calls: fabricbios_gpu::management::handlers,
    open,
    check,
    detect: detect::detect,
    end: Some(end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// A vendor's library that is silent for this time counts as hung.
const PROBE_SILENCE: Duration = Duration::from_secs(20);

/// Default limit of a lease's worker and programs: contexts of real drivers and their compilers take some hundred
/// megabytes.
const WORKER_MEMORY_MAX: Size = Size(4 << 30);

/// Bytes of the node's id that names contain.
const ID_BYTES: usize = 4;

/// The GPUs that the vendors' libraries have found, each with its last reported health.
#[derive(Clone, Debug, Default)]
pub struct FoundGpus(Arc<Mutex<Vec<Device>>>);

impl FoundGpus {
    fn new(devices: Vec<Device>) -> Self {
        Self(Arc::new(Mutex::new(devices)))
    }

    /// All GPUs found.
    #[must_use]
    pub fn list(&self) -> Vec<Device> {
        self.devices().clone()
    }

    fn set_health(&self, uuid: &str, health: &Health) {
        let mut devices = self.devices();
        for device in devices.iter_mut().filter(|it| it.uuid == uuid) {
            device.health = health.clone();
        }
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of the GPU kind that the node needs besides the offer.
#[derive(Clone)]
pub struct GpuParts {
    /// All that were found, on offer or not.
    pub found: FoundGpus,
    /// Connects clients to sessions.
    pub sessions: Arc<dyn SessionConnector>,
}

impl Default for GpuParts {
    fn default() -> Self {
        Self {
            found: FoundGpus::default(),
            sessions: Arc::new(NoSessions),
        }
    }
}

impl fmt::Debug for GpuParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuParts")
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

/// Opens the GPUs of `--gpus`, and finds GPUs to list.
///
/// # Errors
/// A GPU that the settings name does not exist, or the cgroups or directories of leases cannot be made.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        node_id, watchdog, ..
    } = *opening;
    let (shared, settings) = (&opening.settings.shared, &opening.settings.gpu);
    let records = records(&node_id);
    if settings.gpus.is_none() && !shared.auto_detect && !records.exists() {
        return Ok(Opened::nothing());
    }
    let found = probe(opening);
    let Some(wanted) = &settings.gpus else {
        tracing::info!("no GPUs are offered for lease; --gpus all offers them");
        end_all(opening, &found)?;
        return Ok(Opened {
            gpus: GpuParts {
                found: FoundGpus::new(found),
                ..GpuParts::default()
            },
            ..Opened::nothing()
        });
    };
    try_worker(opening)?;
    let devices = wanted.of(&found)?;
    let gpus = Arc::new(gpus(opening, cdi::directory(shared)?)?);
    gpus.give_nodes_back(|uuid| devices.iter().any(|it| it.uuid == uuid));
    watchdog.ends(ResourceType::Gpu, records);
    let guard = watchdog.guard(ResourceType::Gpu);
    let path = Arc::new(GpuPath::new(gpus.clone(), devices.clone(), guard));
    let mut provider = Provider::new();
    let mut resources = Vec::new();
    let mut stores = Vec::new();
    for device in devices {
        let store = Arc::new(GpuStore::new(gpus.clone(), device.clone()));
        let not_owned = store.take_nodes().err();
        let offer = offer(settings, &node_id, &device, not_owned.as_deref());
        let id = offer.resource_id;
        provider = provider.with_store(id, store.clone());
        tracing::info!(
            resource_id = %id,
            uuid = device.uuid,
            memory = %Size(device.vram_bytes),
            "{} is on offer",
            device.name
        );
        if let Some(why) = &not_owned {
            tracing::warn!(
                uuid = device.uuid,
                why,
                "it is offered for shared leases only, since any user of this machine may open its device nodes"
            );
        }
        resources.push(OfferedResource {
            offer,
            described: Arc::new(OfferedGpu {
                device,
                resource_id: id,
                sessions: session_slots(settings),
                not_owned,
            }),
            // The records say which lease has which device, until a reboot.
            continuity: Continuity::Known,
        });
        stores.push(store);
    }
    let closing = stores.clone();
    let found = FoundGpus::new(found);
    let health = watch(opening, found.clone(), stores);
    let provider = provider.with_path("session", &[Transport::Auto], path.clone());
    let sessions = Arc::new(Sessions(path.clone()));
    Ok(Opened {
        offered: Some(Offered {
            kind: ResourceType::Gpu,
            resources,
            provider: Arc::new(provider),
            per_tenant_max: settings.gpu_per_tenant_max.map(|it| it.0),
            watchdog: Some(watchdog.clone()),
            ready: Box::new(|_| Ok(())),
            changes: Vec::new(),
        }),
        local: Some(path),
        gpus: GpuParts { found, sessions },
        close: Box::new(move || {
            drop(health);
            give_nodes_back(&gpus, &closing);
        }),
    })
}

/// See [`crate::kinds::Kind::check`].
fn check(checking: &Checking<'_>, found: &mut Findings) {
    if checking.settings.gpu.gpus.is_some() && found.lacks_if(needs_root()).is_some() {
        found.refused_if(cdi::check(&checking.settings.shared));
        found.warns("--gpus: only a start asks the vendors' libraries which GPUs there are");
    }
}

fn needs_root() -> anyhow::Result<()> {
    match geteuid().is_root() {
        true => Ok(()),
        false => {
            bail!("--gpus: only root can lease GPUs: workers of sessions have users of their own")
        }
    }
}

/// Isolates a helper process as the workers of sessions are isolated, as a trial.
///
/// # Errors
/// On this machine no worker could serve.
fn try_worker(opening: &Opening<'_>) -> anyhow::Result<()> {
    needs_root()?;
    let trial = Trial {
        libraries: Libraries::default(),
    };
    let tried = opening.supervisor.call(&trial, PROBE_SILENCE, &|_| ());
    let lacks = tried.map_err(|error| {
        anyhow!(
            "--gpus: this machine cannot shut workers of sessions in, so it leases no GPUs: {error}"
        )
    })?;
    for lack in lacks {
        tracing::warn!(
            lack,
            "this machine does not allow a part of the isolation of workers"
        );
    }
    Ok(())
}

/// See [`crate::kinds::Kind::end`]. `records`: the directory of the records.
fn end(records: &OsStr, _: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    Ok(Box::new(GpuEnd::at(Path::new(records))?))
}

/// The records of leases of GPUs; a reboot empties the directory.
fn records(node_id: &NodeId) -> PathBuf {
    PathBuf::from(format!("/run/fabricbios-{}/gpu", digits(node_id)))
}

fn digits(node_id: &NodeId) -> String {
    let bytes = node_id.0.iter().take(ID_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Restores the device nodes when the node stops. Devices with leases that go on without the node keep their nodes.
fn give_nodes_back(gpus: &Gpus, stores: &[Arc<GpuStore>]) {
    let has_leases = |store: &GpuStore| {
        let leases = fabricbios_contract::Store::leases(store);
        leases.is_ok_and(|it| !it.is_empty())
    };
    gpus.give_nodes_back(|uuid| { stores.iter() }.any(|it| it.uuid() == uuid && has_leases(it)));
}

/// Asks the vendors' libraries, in helper processes.
fn probe(opening: &Opening<'_>) -> Vec<Device> {
    let libraries = Libraries::default();
    let probed = discover(opening.supervisor, &libraries, PROBE_SILENCE);
    for warning in probed.warnings {
        tracing::warn!("{warning}");
    }
    for note in probed.notes {
        tracing::debug!("{note}");
    }
    probed.devices
}

fn gpus(opening: &Opening<'_>, cdi: PathBuf) -> anyhow::Result<Gpus> {
    let node = digits(&opening.node_id);
    let mount = mounts().into_iter().find(|mount| mount.kind == "cgroup2");
    let config = GpuConfig {
        records: records(&opening.node_id),
        cgroup: mount.map(|mount| mount.place.join(format!("fabricbios-gpu-{node}"))),
        worker_memory_max: (opening.settings.gpu.gpu_worker_memory_max)
            .unwrap_or(WORKER_MEMORY_MAX)
            .0,
        cdi,
        tenants: tenants(&opening.settings.shared),
        hook: own_program()?,
        supervisor: opening.supervisor.clone(),
        program: opening.program.clone(),
        libraries: Libraries::default(),
    };
    Gpus::open(config).map_err(|error| anyhow!("--gpus: {error}"))
}

fn tenants(settings: &SharedSettings) -> BTreeMap<String, BTreeSet<u32>> {
    let mut tenants: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for it in &settings.tenant_uid {
        tenants.entry(it.tenant.clone()).or_default().insert(it.uid);
    }
    tenants
}

/// Ends the leases that an earlier run with `--gpus` has left. A lease that cannot be cleaned stays in the records, and
/// the next run with `--gpus` fences it.
fn end_all(opening: &Opening<'_>, found: &[Device]) -> anyhow::Result<()> {
    let directory = records(&opening.node_id);
    if !directory.exists() {
        return Ok(());
    }
    // This call writes no specification: the records name the directories of earlier leases' specifications.
    let gpus = Arc::new(gpus(opening, cdi::named(&opening.settings.shared))?);
    for device in found {
        let store = GpuStore::new(gpus.clone(), device.clone());
        for lease in fabricbios_contract::Store::leases(&store)? {
            let binding_id = stray_binding_id(ResourceId(0), lease);
            tracing::warn!(lease_id = %lease, "ending a lease of a GPU that is not on offer any more");
            if let Err(error) =
                fabricbios_contract::Store::release(&store, binding_id, None, &|| ())
            {
                tracing::error!(lease_id = %lease, %error, "something of an earlier lease stays");
            }
        }
        store.leave()?;
    }
    gpus.give_nodes_back(|_| false);
    // The directory stays if it has a record of a lease whose device is gone.
    fs::remove_dir(&directory).ok();
    Ok(())
}

/// A vendor's library that does not report health for this time counts as hung.
const SILENCE: Duration = Duration::from_secs(15);

/// Passes the health that the vendors' libraries report on to the stores.
fn watch(
    opening: &Opening<'_>,
    found: FoundGpus,
    stores: Vec<Arc<GpuStore>>,
) -> Option<HealthWatch> {
    if stores.is_empty() {
        return None;
    }
    let devices = found.list();
    let tell = move |uuid: &str, health: &Health| {
        found.set_health(uuid, health);
        for store in stores.iter().filter(|it| it.uuid() == uuid) {
            store.set_health(health.clone());
        }
    };
    let watch = HealthWatch::start(
        opening.supervisor.clone(),
        Libraries::default(),
        devices,
        Arc::new(tell),
        SILENCE,
    );
    watch
        .inspect_err(|error| tracing::error!(%error, "the health of GPUs is not watched"))
        .ok()
}

/// Connects clients of the control plane to sessions.
struct Sessions(Arc<GpuPath>);

impl SessionConnector for Sessions {
    fn connect(
        &self,
        principal: &Principal,
        open: SessionOpen,
    ) -> Result<std::os::unix::net::UnixStream, Refusal> {
        let _connecting = descriptors::for_a_stream()?;
        self.0
            .connect(open.lease_id, &principal.tenant, open.session)
    }
}
