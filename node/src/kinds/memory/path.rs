//! The paths to memory: RDMA and UDP.

use std::{net::Ipv6Addr, sync::Arc};

use anyhow::Context;
use fabricbios_arena::Arenas;
use fabricbios_contract::Provider;
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath, ReplayWindow};
use fabricbios_rdma::{RdmaConfig, RdmaOpened, RdmaPath, Strategy};
use fabricbios_wire::{DATA_PAYLOAD_MAX, Transport};

use super::RdmaStrategy;
use crate::{
    kinds::{close, settings::KindSettings},
    watchdog::Watchdog,
};

/// The open paths.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) rdma: Option<Arc<RdmaPath>>,
    pub(super) udp: Option<Arc<FbmuPath>>,
}

pub(super) fn open_rdma(
    settings: &KindSettings,
    arenas: &Arenas,
    watchdog: &Watchdog,
) -> anyhow::Result<Option<Arc<RdmaPath>>> {
    let Some(device) = settings.memory.rdma_device(&settings.shared) else {
        tracing::info!("no memory is leased over RDMA on this node: --rdma-device none");
        return Ok(None);
    };
    let config = RdmaConfig {
        device,
        arenas: arenas.clone(),
        strategy: strategy(settings.memory.rdma_strategy.unwrap_or_default()),
    };
    let path = match RdmaPath::open(config)? {
        RdmaOpened::Ready(path) => path,
        RdmaOpened::Absent(why) => {
            tracing::warn!("no memory is leased over RDMA on this node: {why}");
            return Ok(None);
        }
    };
    let facts = path.inventory();
    tracing::info!(
        device = %facts.device,
        port = facts.port,
        gid = %Ipv6Addr::from(facts.gid),
        mtu_bytes = facts.mtu_bytes,
        atomics = facts.atomics,
        strategy = %facts.strategy,
        "memory is leased over RDMA"
    );
    Ok(Some(Arc::new(path.guarded_by(Arc::new(watchdog.clone())))))
}

fn strategy(wanted: RdmaStrategy) -> Strategy {
    match wanted {
        RdmaStrategy::Auto => Strategy::Auto,
        RdmaStrategy::Window => Strategy::Window,
        RdmaStrategy::Region => Strategy::Region,
    }
}

pub(super) fn open_udp(
    settings: &KindSettings,
    arenas: &Arenas,
) -> anyhow::Result<Option<Arc<FbmuPath>>> {
    let Some(listen) = settings.memory.fbmu_listen(&settings.shared) else {
        return Ok(None);
    };
    let config = FbmuConfig {
        listen,
        workers: None,
        arenas: arenas.clone(),
        ops_per_second: settings.shared.ops_per_second(),
    };
    let path = FbmuPath::open(config).with_context(|| {
        format!("--fbmu-listen {listen}; choose another address, or `none` for no such transport")
    })?;
    tracing::info!(listen = %path.local_addr(), "memory is leased over UDP");
    let window = match settings.shared.is_bare_metal() {
        true => ReplayWindow::SHORTEST,
        false => ReplayWindow::LONGEST,
    };
    Ok(Some(Arc::new(path.with_window(window))))
}

impl Paths {
    /// Binds RDMA first, because it may refuse; cuts UDP first, because that is immediate.
    pub(super) fn provider(&self) -> Provider {
        let mut provider = Provider::new();
        if let Some(rdma) = &self.rdma {
            provider = provider.with_path("RDMA", &[Transport::Rdma], rdma.clone());
        }
        if let Some(udp) = &self.udp {
            provider = provider.with_path("UDP", &[Transport::Udp], udp.clone());
        }
        provider
    }

    /// Best first.
    pub(super) fn transports(&self) -> Vec<Transport> {
        let rdma = self.rdma.as_ref().map(|_| Transport::Rdma);
        let udp = self.udp.as_ref().map(|_| Transport::Udp);
        let both = rdma.and(udp).map(|_| Transport::Both);
        [rdma, udp, both].into_iter().flatten().collect()
    }

    pub(super) fn message_bytes_max(&self) -> u32 {
        let rdma = self
            .rdma
            .as_ref()
            .map(|rdma| rdma.inventory().message_bytes);
        rdma.unwrap_or(u32::try_from(DATA_PAYLOAD_MAX).unwrap_or(u32::MAX))
    }

    /// Closes socket and device after the node has stopped.
    pub(super) fn close(self) {
        close(self.udp, "UDP socket", |udp| {
            udp.close();
            Ok(())
        });
        close(self.rdma, "RDMA device", RdmaPath::close);
    }
}
