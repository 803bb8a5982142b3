//! GPUs on offer.

pub(super) mod detect;
mod end;
mod found;
mod offer;
mod sessions;
mod settings;
mod wanted;

pub use found::FoundGpus;
pub use sessions::GpuParts;
pub use settings::{GpuSettings, GpuShareMode};
pub use wanted::WantedGpus;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{anyhow, bail};
use fabricbios_contract::{Provider, Store};
use fabricbios_gpu::{GpuConfig, GpuPath, GpuStore, Gpus, Libraries, Tenants, worker::Trial};
use fabricbios_kernfs::mounts;
use fabricbios_wire::{ResourceType, Size, Transport};
use nix::unistd::geteuid;

use self::{
    end::end_all,
    found::{probe, watch},
    offer::{OfferedGpu, offer, session_slots},
    sessions::Sessions,
};
use crate::{
    kinds::{
        Continuity, Kind, Offered, OfferedResource, Opened, Opening, cdi, digits, own_program,
        records, settings::SharedSettings,
    },
    process::check::{Checking, Findings},
};

/// See [`crate::kinds::KINDS`].
pub(super) const KIND: Kind = Kind {
    resource_type: ResourceType::Gpu,
    conflicts: settings::conflicts,
    datagrams: |_| None,
    per_tenant_max: |settings| settings.gpu.gpu_per_tenant_max.map(|it| it.0),
    calls: fabricbios_gpu::management::handlers,
    open,
    check,
    detect: detect::detect,
    end: Some(end::end),
    #[cfg(test)]
    examples: &settings::tests::EXAMPLES,
};

/// A vendor's library that is silent for this time counts as hung.
const PROBE_SILENCE: Duration = Duration::from_secs(20);

/// Default limit of a lease's worker and programs: contexts of real drivers and their compilers take some hundred
/// megabytes.
const WORKER_MEMORY_MAX: Size = Size(4 << 30);

/// Opens the GPUs of `--gpus`, and finds GPUs to list.
///
/// # Errors
/// A GPU that the settings name does not exist, or the cgroups or directories of leases cannot be made.
pub fn open(opening: &Opening<'_>) -> anyhow::Result<Opened> {
    let Opening {
        node_id, watchdog, ..
    } = *opening;
    let (shared, settings) = (&opening.settings.shared, &opening.settings.gpu);
    let records = records(&node_id, ResourceType::Gpu);
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
        let not_owned = store.take_nodes().err().map(|error| error.to_string());
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
    let (closing, rereads) = (stores.clone(), gpus.clone());
    let found = FoundGpus::new(found);
    let health = watch(opening, found.clone(), stores);
    let provider = provider.with_path("session", &[Transport::Auto], path.clone());
    let sessions = Arc::new(Sessions(path.clone()));
    Ok(Opened {
        offered: Some(Offered {
            watchdog: Some(watchdog.clone()),
            ..Offered::new(ResourceType::Gpu, resources, Arc::new(provider))
        }),
        local: Some(path),
        gpus: GpuParts { found, sessions },
        datagrams: None,
        reread: Box::new(move |settings| rereads.change_tenants(tenants(&settings.shared))),
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

/// Restores the device nodes when the node stops. Devices with leases that go on without the node keep their nodes.
fn give_nodes_back(gpus: &Gpus, stores: &[Arc<GpuStore>]) {
    let has_leases = |store: &GpuStore| store.leases().is_ok_and(|it| !it.is_empty());
    gpus.give_nodes_back(|uuid| { stores.iter() }.any(|it| it.uuid() == uuid && has_leases(it)));
}

fn gpus(opening: &Opening<'_>, cdi: PathBuf) -> anyhow::Result<Gpus> {
    let node = digits(&opening.node_id);
    let mount = mounts().into_iter().find(|mount| mount.kind == "cgroup2");
    let config = GpuConfig {
        records: records(&opening.node_id, ResourceType::Gpu),
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

fn tenants(settings: &SharedSettings) -> Tenants {
    let mut tenants = Tenants::new();
    for it in &settings.tenant_uid {
        tenants.entry(it.tenant.clone()).or_default().insert(it.uid);
    }
    tenants
}
