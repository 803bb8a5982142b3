//! Over which road a lease goes: what is asked × what the resource has × what a road can do.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{
    LeaseAllocRequest, LeaseError, Refusal, RefusalClass, ResourceType, Transport,
};

use crate::resource::Resource;

/// The kernel's target refuses to enable a namespace on a device that cannot be written, and has no
/// switch that makes a writable one read-only.
const READ_ONLY_ROAD: &str = "a read-only lease goes over FBBU alone, ask for `--transport udp`: the \
     kernel's NVMe target does not open a read-only device and cannot protect a writable one";

const NO_HOST: &str = "a host NQN, a host identifier and mutual authentication belong to NVMe-oF: leave \
     them out, or ask for a road that is NVMe-oF";

const NO_PEERS_OF_BLOCK: &str =
    "block storage takes no queue pair of the client, whatever the road: leave it out";

const NO_PEERS: &str = "a queue pair was given, and it takes none";

/// Whether queue pairs of the client belong to a lease over this road. Those of NVMe-oF are made
/// between the two kernels.
pub(crate) fn takes_peers(kind: ResourceType, road: Transport) -> bool {
    kind != ResourceType::Block && matches!(road, Transport::Rdma | Transport::Both)
}

/// Whether this road has a key of datagrams.
pub(crate) fn takes_datagrams(road: Transport) -> bool {
    matches!(road, Transport::Udp | Transport::Both)
}

/// For blocks, both roads are NVMe-oF and FBBU.
fn is_nvmeof(kind: ResourceType, road: Transport) -> bool {
    let both = kind == ResourceType::Block && road == Transport::Both;
    both || matches!(road, Transport::NvmeTcp | Transport::NvmeRdma)
}

impl Resource {
    /// Over which road a lease would go; `None` if this resource has none that fits.
    pub(crate) fn road(&self, request: &LeaseAllocRequest) -> Option<Transport> {
        let fits = |road: &Transport| self.misfit(*road, request).is_none();
        let named = |road: &Transport| match request.transport {
            Transport::Auto => true,
            named => *road == named,
        };
        let mut roads = self.transports.iter().copied();
        roads.find(|road| named(road) && fits(road))
    }

    /// Whether the lease will be read-only.
    pub(crate) fn read_only_for(&self, request: &LeaseAllocRequest) -> bool {
        self.read_only || request.block.read_only
    }

    /// Why a lease cannot go over this road.
    fn misfit(&self, road: Transport, request: &LeaseAllocRequest) -> Option<&'static str> {
        let nvmeof = is_nvmeof(self.kind, road);
        if !request.rdma_peers.is_empty() && !takes_peers(self.kind, road) {
            let blocks = self.kind == ResourceType::Block;
            Some(if blocks { NO_PEERS_OF_BLOCK } else { NO_PEERS })
        } else if nvmeof && self.read_only_for(request) {
            Some(READ_ONLY_ROAD)
        } else if !nvmeof && request.block.names_host() {
            Some(NO_HOST)
        } else {
            None
        }
    }

    fn why_no_road(&self, request: &LeaseAllocRequest) -> String {
        let (id, named) = (self.id, request.transport);
        let has = names(&self.transports);
        // Also where the whole resource is read-only and so has no such road.
        if is_nvmeof(self.kind, named) && self.read_only_for(request) {
            return format!("resource {id} over {named}: {READ_ONLY_ROAD}");
        }
        if named != Transport::Auto && !self.transports.contains(&named) {
            return format!("transport {named} is not offered for resource {id}; it has {has}");
        }
        if let Some(why) = self
            .misfit(named, request)
            .filter(|_| named != Transport::Auto)
        {
            return format!("resource {id} over {named}: {why}");
        }
        let roads = self.transports.iter();
        let mut whys: Vec<&str> = roads.filter_map(|&r| self.misfit(r, request)).collect();
        whys.dedup();
        let whys = whys.join("; ");
        format!("no road of resource {id} fits, it has {has}: {whys}")
    }
}

fn names(roads: &[Transport]) -> String {
    let names: Vec<&str> = roads.iter().map(|road| road.name()).collect();
    names.join(", ")
}

/// The road, or why there is none and what to do.
pub(crate) fn check_road(
    resource: &Resource,
    request: &LeaseAllocRequest,
) -> Result<Transport, Refusal> {
    resource.road(request).ok_or_else(|| {
        Refusal::new(
            LeaseError::InvalidArgs,
            RefusalClass::Permanent,
            resource.why_no_road(request),
        )
    })
}
