//! A lease over UDP, and the servers for comparison: the same number of threads with less work.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};

use anyhow::Context;
use fabricbios_arena::{Arena, Source};
use fabricbios_contract::{DataPath as _, Part};
use fabricbios_fallback_udp::{DataKey, FbmuConfig, FbmuPath, ReplyBuffer};
use fabricbios_lease::{BindOrder, BindingId, BootTime, Extent, Placement};
use fabricbios_wire::{
    Binding, DATA_OVERHEAD, DataFrame, DataStatus, DpKey, Generation, LeaseId, ResourceId,
    Transport,
};

use super::echo;

const ARENA: ResourceId = ResourceId(1);
const ANY_PORT: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A lease that is served.
pub(super) struct Leased {
    backend: FbmuPath,
    binding: Binding,
    lease_id: LeaseId,
}

impl Leased {
    pub(super) fn open(bytes: u64) -> anyhow::Result<Self> {
        let backend = FbmuPath::open(FbmuConfig {
            listen: ANY_PORT.into(),
            workers: Some(NonZeroUsize::MIN),
            arenas: [(ARENA, Arc::new(Arena::open(&Source::default(), bytes)?))].into(),
            ops_per_second: u32::MAX,
        })?;
        let binding_id = BindingId {
            lease_id: LeaseId(7),
            generation: Generation(1),
            resource_id: ARENA,
        };
        let order = BindOrder::new(
            binding_id,
            Placement::Stretch(Extent {
                offset: 0,
                length: bytes,
            }),
            Transport::Udp,
        );
        let binding = backend
            .bind(&order, &Part::at(order.extent()))
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        backend.extend(binding_id, BootTime(u64::MAX))?;
        binding.dp_key.as_ref().context("a binding without key")?;
        Ok(Self {
            backend,
            binding,
            lease_id: binding_id.lease_id,
        })
    }

    pub(super) fn lease_id(&self) -> LeaseId {
        self.lease_id
    }

    pub(super) fn key(&self) -> DpKey {
        self.binding.dp_key.clone().unwrap_or(DpKey([0; 32]))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.backend.local_addr()
    }
}

/// A server without leases.
pub(super) struct Echo {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
}

impl Echo {
    /// Sends as many bytes as FBMU would; they begin with the request's own bytes.
    pub(super) fn bare() -> anyhow::Result<Self> {
        Self::open("bare echo", |datagram, reply| {
            reply[..DATA_OVERHEAD].copy_from_slice(&datagram[..DATA_OVERHEAD]);
            length_of_reply(datagram)
        })
    }

    /// Checks the request's tag and makes a tag for the reply, over the same header bytes as FBMU.
    pub(super) fn with_tags(key: &DpKey) -> anyhow::Result<Self> {
        let key = DataKey::new(key);
        Self::open("echo with the same tags", move |datagram, reply| {
            let Ok(frame) = DataFrame::parse(datagram) else {
                return 0;
            };
            if !key.verifies(&frame) {
                return 0;
            }
            let header = frame.header.answered(DataStatus::Ok);
            reply[..DATA_OVERHEAD].copy_from_slice(&key.seal(header, &[]));
            length_of_reply(datagram)
        })
    }

    /// Answers each datagram of a stream with as many bytes as FBMU answers a WRITE.
    pub(super) fn of_writes() -> anyhow::Result<Self> {
        Self::open("bare stream", |datagram, reply| {
            reply[..DATA_OVERHEAD].copy_from_slice(&datagram[..DATA_OVERHEAD]);
            DATA_OVERHEAD
        })
    }

    fn open(
        name: &'static str,
        handler: impl FnMut(&[u8], &mut ReplyBuffer) -> usize + Send + 'static,
    ) -> anyhow::Result<Self> {
        let address = echo::start(handler)?;
        Ok(Self { name, address })
    }
}

/// FBMU's reply to a READ.
fn length_of_reply(datagram: &[u8]) -> usize {
    let wanted = datagram.get(40..44).and_then(|bytes| bytes.try_into().ok());
    let wanted = wanted.map_or(0, u32::from_be_bytes);
    DATA_OVERHEAD + usize::try_from(wanted).unwrap_or(0).min(4096)
}
