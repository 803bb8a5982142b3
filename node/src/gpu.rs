//! GPUs on offer.

use std::{fmt, fs, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use anyhow::{anyhow, bail};
use fabricbios_contract::{Provider, stray_binding_id};
use fabricbios_control::{NoSessions, Principal, SessionConnector, SessionOpen};
use fabricbios_gpu::{
    Device, GpuConfig, GpuPath, GpuStore, Gpus, Health, Libraries, QUEUE_SLOTS,
    management::{HealthWatch, discover},
};
use fabricbios_kernfs::mounts;
use fabricbios_lease::{
    AllocationMode, COMPUTE_SLICES, ClassOffer, ClassState, Dimension, Durability, FenceScope,
    Offer, OfferedClass, Takes,
};
use fabricbios_wire::{
    GpuExclusivityClass, InventoryExtension, NodeId, Refusal, ResourceId, ResourceInventory,
    ResourceType, Size, Transport,
};
use nix::unistd::geteuid;

use crate::{
    config::{GpuShareMode, Settings},
    detect::{Detected, resource_id},
    inventory::{Described, ResourceStatus, describe},
    providers::{Continuity, Offered, OfferedResource, Opened, Opening},
};

/// Of what a GPU has an amount, besides [`COMPUTE_SLICES`].
const VRAM: &str = "vram";
const SESSIONS: &str = "sessions";

/// Leases of a shared GPU at once. Each session has a context, for which the driver takes some hundred megabytes.
const SESSION_SLOTS: u16 = 8;

/// A vendor's library that says nothing for so long hangs.
const PROBE_SILENCE: Duration = Duration::from_secs(20);

/// The proof of a cut waits until the driver has torn the context of a killed worker down, which takes long if it has much
/// memory. Access ends at once.
const CUT_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of the node's id in names.
const ID_BYTES: usize = 4;

/// GPUs that `--gpus` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedGpus {
    /// All that work.
    All,
    /// Those with these UUIDs.
    These(Vec<String>),
}

impl FromStr for WantedGpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let uuids: Vec<String> = text.split(',').map(|it| it.trim().to_owned()).collect();
        match uuids.iter().all(|it| !it.is_empty()) {
            true => Ok(Self::These(uuids)),
            false => Err("`all`, or UUIDs with commas between".into()),
        }
    }
}

/// What the node needs of the GPUs besides their offer.
#[derive(Clone)]
pub struct GpuParts {
    /// All that were found, on offer or not.
    pub found: Vec<Device>,
    /// Connects clients to sessions.
    pub sessions: Arc<dyn SessionConnector>,
}

impl Default for GpuParts {
    fn default() -> Self {
        Self {
            found: Vec::new(),
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

/// Opens what `--gpus` asks for, and looks for GPUs to list.
///
/// # Errors
/// A GPU that is named is not there, or what leases need cannot be made.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        settings,
        node_id,
        watchdog,
        ..
    } = *opening;
    let records = records(&node_id);
    if settings.gpus.is_none() && !settings.auto_detect && !records.exists() {
        return Ok(Opened::nothing());
    }
    let found = probe(opening);
    let Some(wanted) = &settings.gpus else {
        tracing::info!("no GPUs are offered for lease; --gpus all offers them");
        end_all(opening, &found)?;
        return Ok(Opened {
            gpus: GpuParts {
                found,
                ..GpuParts::default()
            },
            ..Opened::nothing()
        });
    };
    if !geteuid().is_root() {
        bail!("--gpus: only root can lease GPUs");
    }
    let devices = chosen(wanted, &found)?;
    let gpus = Arc::new(gpus(opening)?);
    watchdog.ends(ResourceType::Gpu, records);
    let guard = watchdog.guard(ResourceType::Gpu);
    let path = Arc::new(GpuPath::new(gpus.clone(), devices.clone(), guard));
    let mut provider = Provider::new();
    let mut resources = Vec::new();
    let mut stores = Vec::new();
    for device in devices {
        let offer = offer(settings, &node_id, &device);
        let id = offer.resource_id;
        let store = Arc::new(GpuStore::new(gpus.clone(), device.clone()));
        provider = provider.with_store(id, store.clone());
        tracing::info!(
            resource_id = %id,
            uuid = device.uuid,
            memory = %Size(device.vram_bytes),
            "{} is leased",
            device.name
        );
        resources.push(OfferedResource {
            offer,
            described: Arc::new(OfferedGpu {
                store: store.clone(),
                device,
                resource_id: id,
                sessions: session_slots(settings),
            }),
            // The records say which lease has what, until a reboot.
            continuity: Continuity::Known,
        });
        stores.push(store);
    }
    let health = watch(opening, &found, stores);
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
        close: Box::new(move || drop(health)),
    })
}

/// The records of leases of GPUs; a reboot empties the directory.
fn records(node_id: &NodeId) -> PathBuf {
    PathBuf::from(format!("/run/fabricbios-{}/gpu", digits(node_id)))
}

fn digits(node_id: &NodeId) -> String {
    let bytes = node_id.0.iter().take(ID_BYTES);
    bytes.map(|byte| format!("{byte:02x}")).collect()
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

/// The devices on offer: of a divided one only its partitions.
fn chosen(wanted: &WantedGpus, found: &[Device]) -> anyhow::Result<Vec<Device>> {
    let known = || {
        let uuids: Vec<&str> = found.iter().map(|it| &*it.uuid).collect();
        match uuids.is_empty() {
            true => "the vendors' libraries know none".to_owned(),
            false => format!("there are {}", uuids.join(", ")),
        }
    };
    let devices: Vec<Device> = match wanted {
        WantedGpus::All => found
            .iter()
            .filter(|it| !it.has_partitions)
            .cloned()
            .collect(),
        WantedGpus::These(uuids) => {
            let find = |uuid: &String| match found.iter().find(|it| it.uuid == *uuid) {
                None => Err(anyhow!("--gpus {uuid}: there is no such GPU; {}", known())),
                Some(device) if device.has_partitions => Err(anyhow!(
                    "--gpus {uuid}: this GPU is divided into partitions: name those"
                )),
                Some(device) => Ok(device.clone()),
            };
            uuids.iter().map(find).collect::<anyhow::Result<_>>()?
        }
    };
    if devices.is_empty() {
        tracing::warn!("--gpus: nothing is offered: {}", known());
    }
    Ok(devices)
}

fn gpus(opening: &Opening<'_>) -> anyhow::Result<Gpus> {
    let node = digits(&opening.node_id);
    let mount = mounts().into_iter().find(|mount| mount.kind == "cgroup2");
    if mount.is_none() {
        tracing::warn!(
            "this machine does not allow control groups of version 2: leases of GPUs have sessions, and no programs of the node"
        );
    }
    let config = GpuConfig {
        records: records(&opening.node_id),
        cgroup: mount.map(|mount| mount.place.join(format!("fabricbios-gpu-{node}"))),
        cdi: { opening.settings.cdi_dir.clone() }.unwrap_or_else(|| PathBuf::from("/run/cdi")),
        supervisor: opening.supervisor.clone(),
        program: opening.program.clone(),
        libraries: Libraries::default(),
    };
    Gpus::open(config).map_err(|error| anyhow!("--gpus: {error}"))
}

/// Ends the leases that an earlier run with `--gpus` has left. What cannot be cleaned stays in the records, and the next run
/// with `--gpus` fences it.
fn end_all(opening: &Opening<'_>, found: &[Device]) -> anyhow::Result<()> {
    let directory = records(&opening.node_id);
    if !directory.exists() {
        return Ok(());
    }
    let gpus = Arc::new(gpus(opening)?);
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
    }
    // It stays if a lease of a device that is gone has a record in it.
    fs::remove_dir(&directory).ok();
    Ok(())
}

fn session_slots(settings: &Settings) -> u16 {
    match settings.gpu_share_mode.unwrap_or_default() {
        GpuShareMode::Exclusive => 1,
        GpuShareMode::Fractional => SESSION_SLOTS,
    }
}

fn offer(settings: &Settings, node_id: &NodeId, device: &Device) -> Offer {
    let dimension = |name: &str, capacity: u64, takes| Dimension {
        name: name.to_owned(),
        capacity,
        takes,
    };
    Offer {
        resource_id: resource_id(node_id, ResourceType::Gpu, &device.uuid),
        capacity: device.vram_bytes,
        align: 1,
        transports: Vec::new(),
        durability: Durability::Boot,
        // Memory that was not wiped may be given to any lease of the device.
        fence_scope: FenceScope::Whole,
        cut_within: Some(CUT_WITHIN),
        allocation_mode: AllocationMode::Device(vec![
            dimension(VRAM, device.vram_bytes, Takes::Asked),
            dimension(
                COMPUTE_SLICES,
                device.compute_slices.into(),
                Takes::InProportion,
            ),
            dimension(SESSIONS, session_slots(settings).into(), Takes::Each(1)),
        ]),
        read_only: false,
        classes: Some(classes(settings, device)),
        rate: None,
    }
}

/// The classes under the operator's policy, which is an envelope (003 §4).
fn classes(settings: &Settings, device: &Device) -> ClassOffer {
    let mode = settings.gpu_share_mode.unwrap_or_default();
    let class = |class: GpuExclusivityClass, state| OfferedClass {
        class: class as u8,
        state,
    };
    let default = match mode {
        GpuShareMode::Exclusive => GpuExclusivityClass::DeviceExclusive,
        GpuShareMode::Fractional => GpuExclusivityClass::Shared,
    };
    ClassOffer {
        default: default as u8,
        classes: vec![
            class(
                GpuExclusivityClass::Shared,
                match mode {
                    GpuShareMode::Exclusive => {
                        ClassState::Forbidden("the node's gpu-share-mode is exclusive".into())
                    }
                    GpuShareMode::Fractional => ClassState::Enforced,
                },
            ),
            class(GpuExclusivityClass::SessionExclusive, ClassState::Enforced),
            class(
                GpuExclusivityClass::DeviceExclusive,
                match &device.partition_of {
                    None => ClassState::Enforced,
                    Some(parent) => ClassState::Implied(format!(
                        "it is a partition of {parent}, and a lease of it cannot have that whole device: leave the class out"
                    )),
                },
            ),
        ],
    }
}

/// Tells the stores what the vendors' libraries tell of the devices' health.
fn watch(
    opening: &Opening<'_>,
    found: &[Device],
    stores: Vec<Arc<GpuStore>>,
) -> Option<HealthWatch> {
    if stores.is_empty() {
        return None;
    }
    let tell = move |uuid: &str, health: &Health| {
        for store in stores.iter().filter(|it| it.uuid() == uuid) {
            store.set_health(health.clone());
        }
    };
    let devices = found.to_vec();
    let watch = HealthWatch::start(
        opening.supervisor.clone(),
        Libraries::default(),
        devices,
        Arc::new(tell),
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
        self.0
            .connect(open.lease_id, &principal.tenant, open.session)
    }
}

/// A GPU on offer in inventories.
#[derive(Debug)]
struct OfferedGpu {
    store: Arc<GpuStore>,
    device: Device,
    resource_id: ResourceId,
    sessions: u16,
}

impl Described for OfferedGpu {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus) {
        let id = self.resource_id;
        let mut info = self.device.info(id);
        info.health = self.store.health().code().max(status.health());
        inventory.gpus.retain(|it| it.resource_id != id);
        inventory.gpus.push(info);
        inventory.health = inventory.health.max(info.health);
        let dimensions = status.available.free_dimensions.clone();
        let free = |name: &str| {
            let found = dimensions.iter().find(|it| it.name == name);
            found
                .and_then(|it| u16::try_from(it.amount).ok())
                .unwrap_or(0)
        };
        let name = format!("{} {}", self.device.name, self.device.uuid);
        describe(inventory, status, &name, &[]);
        inventory.extensions.push(InventoryExtension::GpuSlots {
            resource_id: id,
            compute_slices: self.device.compute_slices,
            compute_slices_free: free(COMPUTE_SLICES),
            session_slots: self.sessions,
            session_slots_free: free(SESSIONS),
            queue_slots: QUEUE_SLOTS,
        });
    }

    /// The kernel lists the device by its address; the entry by its UUID has the same id.
    fn hide(&self, detected: &mut Detected) {
        detected
            .gpus
            .retain(|it| Some(&it.name) != self.device.pci.as_ref());
    }
}
