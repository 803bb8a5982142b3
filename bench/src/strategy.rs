//! The cost of a grant and a rotation by the size of the lease: leases as memory windows against leases as regions.
//! Needs an RDMA device; `cargo xtask lab --rdma --mem 8G -- …` provides one.
//!
//! On a device that does not enforce the bounds of windows (soft-RoCE), a lease with a window also has a region
//! (docs/decisions/0003), and the two grants cost the same.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::Provider;
use fabricbios_lease::{BindOrder, BindingId, Extent, Linger};
use fabricbios_rdma::{RdmaConfig, RdmaOpened, RdmaPath, RdmaRequester, Strategy};
use fabricbios_wire::{Generation, LeaseId, MemTerms, ResourceId, Transport};

use crate::figure::{Figure, skipped};
use crate::pairs::{Pairs, interleaved_pairs};

const ARENA: ResourceId = ResourceId(1);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Sizes of leases, MiB
    #[arg(long, value_delimiter = ',', default_value = "1,64,1024")]
    mib: Vec<u32>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    for mib in &options.mib {
        let bytes = u64::from(*mib) << 20;
        let Some(mut window) = Strand::open(Strategy::Window, bytes)? else {
            return skipped(
                "strategy",
                "this host has no RDMA device; a guest of the lab has one",
            );
        };
        let Some(mut region) = Strand::open(Strategy::Region, bytes)? else {
            bail!("the device takes windows and no regions");
        };
        println!(
            "\nleases of {mib} MiB; windows of this device {} bounds",
            if window.rdma.inventory().windows_have_bounds {
                "have"
            } else {
                "have no"
            }
        );
        let mut rotations = Pairs {
            a: Vec::new(),
            b: Vec::new(),
        };
        let grants = interleaved_pairs(
            options.rounds.into(),
            || window.live(&mut rotations.a),
            || region.live(&mut rotations.b),
        )?;
        grants.print("grant by window", "grant by region");
        rotations.print("rotation by window", "rotation by region");
        for (what, pairs) in [("grant", &grants), ("rotation", &rotations)] {
            let (name, said) = (
                format!("strategy/{what}-{mib}"),
                format!("{what} by window, {mib} MiB"),
            );
            Figure::record_times(&name, &said, pairs, "by region")?;
        }
        window.close()?;
        region.close()?;
    }
    Ok(())
}

/// An RDMA path with one strategy.
struct Strand {
    rdma: Arc<RdmaPath>,
    provider: Provider,
    client: RdmaRequester,
    extent: Extent,
    lives: u128,
}

impl Strand {
    fn open(strategy: Strategy, bytes: u64) -> anyhow::Result<Option<Self>> {
        let arena = Arc::new(Arena::open(&Source::default(), bytes)?);
        let config = RdmaConfig {
            device: None,
            arenas: [(ARENA, Arc::clone(&arena))].into(),
            strategy,
        };
        let RdmaOpened::Ready(backend) = RdmaPath::open(config)? else {
            return Ok(None);
        };
        let rdma: Arc<RdmaPath> = Arc::from(backend);
        let provider = Provider::new()
            .with_store(ARENA, Arc::new(ArenaStore::new(arena)))
            .with_path("RDMA", &[Transport::Rdma], rdma.clone());
        Ok(Some(Self {
            rdma,
            provider,
            client: RdmaRequester::open(None, 4096)?,
            extent: Extent {
                offset: 0,
                length: bytes,
            },
            lives: 0,
        }))
    }

    fn close(self) -> anyhow::Result<()> {
        drop(self.provider);
        let rdma = Arc::into_inner(self.rdma).context("the device is in use")?;
        Ok(rdma.close()?)
    }

    /// One lease from its grant to its release. Returns the time of the grant; the time of the rotation goes to
    /// `rotations`. Scrubbing is not measured.
    fn live(&mut self, rotations: &mut Vec<Duration>) -> anyhow::Result<Duration> {
        self.lives += 1;
        let binding_id = BindingId {
            lease_id: LeaseId(self.lives),
            generation: Generation(1),
            resource_id: ARENA,
        };
        let order = BindOrder {
            terms: MemTerms {
                rdma_peers: vec![self.client.peer()],
            }
            .into(),
            ..BindOrder::new(binding_id, self.extent, Transport::Rdma)
        };
        let start = Instant::now();
        self.provider
            .bind(&order)
            .map_err(|error| anyhow!("{error:?}"))?;
        let grant = start.elapsed();
        let start = Instant::now();
        self.provider
            .rotate(binding_id)
            .map_err(|error| anyhow!("{error:?}"))?;
        self.provider.retire_key(binding_id)?;
        rotations.push(start.elapsed());
        self.provider.cut(binding_id, Linger::None)?;
        self.provider.release(binding_id, self.extent, &|| ())?;
        Ok(grant)
    }
}
