//! Over which road a lease goes: what is asked × what the resource has × what a road can do.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{LeaseAllocRequest, LeaseError, Refusal, RefusalClass, Transport};

use crate::{kinds::rules, resource::Resource};

/// Whether this road has a key of datagrams.
pub(crate) fn takes_datagrams(road: Transport) -> bool {
    matches!(road, Transport::Udp | Transport::Both)
}

impl Resource {
    /// Whether a lease fits the roads, or asks for none where its resource has none and its kind needs none.
    pub(crate) fn fits(&self, request: &LeaseAllocRequest) -> bool {
        match self.transports.is_empty() && !rules(&request.terms).needs_transport() {
            true => request.transport == Transport::Auto,
            false => self.road(request).is_some(),
        }
    }

    /// Over which road a lease would go; `None` if this resource has none that fits.
    fn road(&self, request: &LeaseAllocRequest) -> Option<Transport> {
        let fits = |road: &Transport| self.misfit(*road, request).is_none();
        let named = |road: &Transport| match request.transport {
            Transport::Auto => true,
            named => *road == named,
        };
        let mut roads = self.transports.iter().copied();
        roads.find(|road| named(road) && fits(road))
    }

    /// Why a lease cannot go over this road.
    fn misfit(&self, road: Transport, request: &LeaseAllocRequest) -> Option<&'static str> {
        rules(&request.terms).misfit(road, self.read_only)
    }

    fn why_no_road(&self, request: &LeaseAllocRequest) -> String {
        let (id, named) = (self.id, request.transport);
        let has = names(&self.transports);
        if named != Transport::Auto {
            // First: a resource that cannot be written has no road that would need it.
            return match self.misfit(named, request) {
                Some(why) => format!("resource {id} over {named}: {why}"),
                None => {
                    format!("transport {named} is not offered for resource {id}; it has {has}")
                }
            };
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
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

/// The road, `None` where leases of this resource have none, or why none fits and what to do.
pub(crate) fn check_road(
    resource: &Resource,
    request: &LeaseAllocRequest,
) -> Result<Option<Transport>, Refusal> {
    match resource.fits(request) {
        true => Ok(resource.road(request)),
        false => Err(Refusal::new(
            LeaseError::InvalidArgs,
            RefusalClass::Permanent,
            resource.why_no_road(request),
        )),
    }
}
