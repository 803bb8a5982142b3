//! The settings that only builders of some kinds have.

use fabricbios_wire::{
    BlockTerms, CpuExecutionMode, CpuIsolationClass, CpuPartition, GpuExclusivityClass,
    GpuExecutionMode, HandOver, HostId, KvCacheIntent, MacAddress, Nqn, RdmaPeer, Transport,
    VlanId,
};

use super::{BlockBuilder, Builder, CpuBuilder, GpuBuilder, MemBuilder, NetBuilder};
use crate::{Error, Storage, Transfers};

impl<K: Storage> Builder<K> {
    /// Sets the size in bytes. Required.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// Sets the grace time: contents are kept for so long after the end of the term, without access.
    pub fn grace_secs(mut self, secs: u32) -> Self {
        self.request.grace_secs = secs;
        self
    }

    /// Sets the transport. `acquire` fails if the node does not have it.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.request.transport = transport;
        self
    }

    /// Makes each renewal change the key. For callers that read [`crate::Lease::binding`] again after it.
    pub fn rotate_on_renew(mut self) -> Self {
        self.request.rotate_on_renew = true;
        self
    }

    /// Sets the options of the reads and writes of the SDK.
    pub fn transfers(mut self, transfers: Transfers) -> Self {
        self.transfers = transfers;
        self
    }
}

impl MemBuilder {
    /// Adds a queue pair of the caller; [`crate::MemLease::bind`] can do this later.
    pub fn rdma_peer(mut self, peer: RdmaPeer) -> Self {
        self.terms.rdma_peers.push(peer);
        self
    }

    /// Sets the intent of a KV cache.
    pub fn kv_cache(mut self, intent: KvCacheIntent) -> Self {
        self.request.intent.kv_cache = Some(intent);
        self
    }
}

impl BlockBuilder {
    /// Makes the lease read-only.
    pub fn read_only(mut self) -> Self {
        self.terms.read_only = true;
        self
    }

    /// Sets the NVMe-oF host, and its identifier if this is not the UUID in the name. By default the node makes
    /// both for this lease.
    pub fn host(mut self, name: Nqn, id: Option<HostId>) -> Self {
        self.terms = BlockTerms {
            host_nqn: Some(name),
            host_id: id,
            ..self.terms
        };
        self
    }

    /// Makes the controller authenticate itself to the host, too (NVMe-oF).
    pub fn mutual_auth(mut self) -> Self {
        self.terms.mutual_auth = true;
        self
    }
}

impl CpuBuilder {
    /// Sets the number of cores. This or [`CpuBuilder::single_core`] is required.
    pub fn cores(mut self, cores: u16) -> Self {
        self.request.capacity = cores.into();
        self
    }

    /// One core. For one thread that nobody disturbs, add [`CpuBuilder::isolation`] and not further cores.
    pub fn single_core(self) -> Self {
        self.cores(1)
    }

    /// Sets the isolation from other leases; the policy of the node by default.
    pub fn isolation(mut self, policy: CpuIsolationClass) -> Self {
        self.terms.isolation = Some(policy);
        self
    }

    /// States whether one thread will run, or several that share memory.
    pub fn execution_mode(mut self, mode: CpuExecutionMode) -> Self {
        self.terms.execution_mode = Some(mode);
        self
    }

    /// States how many threads will run at once; 1 by default. A bare-metal node refuses any other number of cores.
    pub fn execution_width(mut self, threads: u16) -> Self {
        self.terms.execution_width = Some(threads);
        self
    }

    /// Sets the cpuset partition of a lease with CPUs of its own; the node chooses by default.
    pub fn partition(mut self, partition: CpuPartition) -> Self {
        self.terms.partition = Some(partition);
        self
    }
}

impl NetBuilder {
    /// Sets the transmit rate in megabits (10^6 bits) per second. Required.
    pub fn mbps(mut self, megabits: u32) -> Self {
        self.request.capacity = u64::from(megabits) * 1_000_000;
        self
    }

    /// Sets the VLAN. By default frames are untagged.
    ///
    /// # Errors
    /// [`Error::Usage`] if the id is not 1 to 4094.
    pub fn vlan(mut self, id: u16) -> Result<Self, Error> {
        let vlan = VlanId::try_from(id).map_err(|why| Error::Usage(format!("VLAN {id}: {why}")))?;
        self.terms.vlan = Some(vlan);
        Ok(self)
    }

    /// Sets the MAC address. By default the node makes one.
    pub fn mac(mut self, mac: MacAddress) -> Self {
        self.terms.mac = Some(mac);
        self
    }

    /// Sets how the function is handed over on the node; as a named interface by default.
    pub fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.terms.hand_over = Some(hand_over);
        self
    }
}

impl GpuBuilder {
    /// Sets the memory in bytes that the lease needs. Required. A lease of a whole GPU gets all of its memory.
    pub fn min_vram(mut self, bytes: u64) -> Self {
        self.request.capacity = bytes;
        self
    }

    /// Sets with whom the GPU is shared; the policy of the node by default.
    pub fn exclusivity(mut self, class: GpuExclusivityClass) -> Self {
        self.terms.exclusivity = Some(class);
        self
    }

    /// States whether memory and modules stay until the session is closed, or go with the stream that made them. They stay
    /// by default.
    pub fn execution_mode(mut self, mode: GpuExecutionMode) -> Self {
        self.terms.execution_mode = Some(mode);
        self
    }

    /// Sets the compute slices that the lease needs; by default its share of the memory decides.
    pub fn compute_slices(mut self, slices: u16) -> Self {
        self.terms.compute_slices = Some(slices);
        self
    }
}
