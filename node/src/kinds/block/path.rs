//! The paths to block storage: the kernel's NVMe target, and UDP.

use std::{
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;
use fabricbios_contract::Provider;
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath};
use fabricbios_lease::{BindingId, StepError};
use fabricbios_nvmet::{HostOwners, Target, TargetConfig};
use fabricbios_wire::{BlockTerms, ResourceType, Transport};

use super::{
    CONFIGFS, hosts,
    nvme_host::{NvmeHost, refuse_taken},
    readable,
};
use crate::{
    kinds::{Opening, close, settings::KindSettings},
    process::clock,
};

/// The hosts of `--nvme-host`: only one tenant may name each.
#[derive(Debug)]
pub(super) struct NamedHosts(Mutex<Vec<NvmeHost>>);

impl NamedHosts {
    pub(super) fn of(settings: &KindSettings) -> Self {
        Self(Mutex::new(settings.block.nvme_host.clone()))
    }

    /// Takes over other hosts. Leases that are bound stay.
    pub(super) fn change(&self, settings: &KindSettings) {
        *self.now() = settings.block.nvme_host.clone();
    }

    fn now(&self) -> MutexGuard<'_, Vec<NvmeHost>> {
        // They are replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostOwners for NamedHosts {
    /// Logs which tenant named which host, so that an operator can revoke wrong leases.
    fn admits(
        &self,
        binding_id: BindingId,
        tenant: &str,
        terms: &BlockTerms,
    ) -> Result<(), StepError> {
        refuse_taken(&self.now(), tenant, terms).map_err(|taken| StepError::new("host", taken))?;
        if let Some(host_nqn) = &terms.host_nqn {
            tracing::info!(lease_id = %binding_id.lease_id, %tenant, %host_nqn, "a tenant named its host");
        }
        Ok(())
    }
}

/// The open paths.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) target: Option<Arc<Target>>,
    pub(super) datagrams: Option<Arc<FbbuPath>>,
}

/// `owners`: the target will serve leases to these hosts, under the watchdog.
pub(super) fn open_target(
    opening: &Opening<'_>,
    owners: Option<&Arc<NamedHosts>>,
) -> anyhow::Result<Option<Arc<Target>>> {
    let Opening {
        node_id,
        past,
        watchdog,
        supervisor,
        ..
    } = *opening;
    let settings = &opening.settings.block;
    let configfs = Path::new(CONFIGFS);
    if settings.nvmet.is_empty() && !Target::has_leftovers(configfs, node_id) {
        tracing::info!("no block storage is leased over NVMe-oF; --nvmet tcp:ADDR:PORT does that");
        return Ok(None);
    }
    let config = TargetConfig {
        configfs: configfs.into(),
        ports: settings.nvmet.iter().map(|port| port.0).collect(),
        hosts: hosts::known(past),
        host_records: Arc::new(past.journal.writer()),
        node_id,
        supervisor: supervisor.clone(),
    };
    let mut target = Target::open(config).context("--nvmet: the kernel's NVMe target")?;
    target.remove_unrecorded_hosts()?;
    if let Some(owners) = owners {
        watchdog.ends(ResourceType::Block, node_id.to_string());
        target = target.guarded_by(watchdog.guard(ResourceType::Block), owners.clone());
    }
    tracing::info!(transports = ?target.transports(), "block storage is leased over NVMe-oF");
    Ok(Some(Arc::new(target)))
}

pub(super) fn open_datagrams(opening: &Opening<'_>) -> anyhow::Result<Option<Arc<FbbuPath>>> {
    let KindSettings { shared, block, .. } = opening.settings;
    let Some(listen) = block.fbbu_listen(shared) else {
        return Ok(None);
    };
    let config = FbbuConfig {
        listen,
        workers: None,
        ops_per_second: shared.ops_per_second(),
        half_sent_max: block.fbbu_half_sent_max(),
        write_verifier: clock::boot_number(),
    };
    match FbbuPath::open(&config) {
        Ok(served) => {
            tracing::info!(listen = %served.local_addr(), "block storage is leased over UDP");
            let supervisor = opening.supervisor.clone();
            // The path reads on a thread of the daemon, so a read must not hang.
            let look = move |path: &Path| readable::check(&supervisor, path);
            Ok(Some(Arc::new(served.looking_first(look))))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            tracing::warn!("no block storage is leased over UDP on this node: {error}");
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| {
            format!(
                "--fbbu-listen {listen}; choose another address, or `none` for no such transport"
            )
        }),
    }
}

impl Paths {
    /// Binds NVMe-oF first, because it may refuse; cuts UDP first, because that is immediate.
    pub(super) fn provider(&self) -> Provider {
        let mut provider = Provider::new();
        if let Some(target) = &self.target {
            let transports = [Transport::NvmeRdma, Transport::NvmeTcp];
            provider = provider.with_path("NVMe-oF", &transports, target.clone());
        }
        if let Some(datagrams) = &self.datagrams {
            provider = provider.with_path("UDP", &[Transport::Udp], datagrams.clone());
        }
        provider
    }

    /// Best first. Read-only pools are served over UDP only: the kernel's target opens no read-only device and cannot
    /// protect a writable one.
    pub(super) fn transports(&self, read_only: bool) -> Vec<Transport> {
        let mut transports = match &self.target {
            Some(target) if !read_only => target.transports(),
            _ => Vec::new(),
        };
        if self.datagrams.is_some() {
            let both = (!transports.is_empty()).then_some(Transport::Both);
            transports.push(Transport::Udp);
            transports.extend(both);
        }
        transports
    }

    /// Closes socket and ports after the node has stopped.
    pub(super) fn close(self) {
        close(self.datagrams, "UDP socket of blocks", |datagrams| {
            datagrams.close();
            Ok(())
        });
        close(self.target, "NVMe target", Target::close);
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{Generation, LeaseId, ResourceId};

    use super::*;

    #[test]
    fn hosts_that_change_are_for_their_new_tenants() {
        let name = "nqn.2014-08.org.example:host1";
        let of = |tenant: &str| {
            let mut settings = KindSettings::default();
            settings.block.nvme_host = vec![format!("{name}={tenant}").parse().unwrap()];
            settings
        };
        let terms = BlockTerms {
            host_nqn: Some(name.parse().unwrap()),
            ..BlockTerms::default()
        };
        let binding_id = BindingId {
            resource_id: ResourceId(1),
            lease_id: LeaseId(1),
            generation: Generation(1),
        };
        let hosts = NamedHosts::of(&of("blue"));
        let admits = |tenant| hosts.admits(binding_id, tenant, &terms).is_ok();
        assert!(admits("blue") && !admits("red"));
        hosts.change(&of("red"));
        assert!(admits("red") && !admits("blue"));
        hosts.change(&KindSettings::default());
        assert!(admits("red") && admits("blue"));
    }
}
