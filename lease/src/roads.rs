//! Over which road a lease goes: what is asked × what the resource has × what a road can do.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{LeaseAllocRequest, LeaseError, Refusal, RefusalClass, Transport};

use crate::{kinds::rules, resource::Resource};

/// Whether this road has a key of datagrams.
pub(crate) fn takes_datagrams(road: Transport) -> bool {
    matches!(road, Transport::Udp | Transport::Both)
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
