//! Choice of the transport of a lease: the request × the resource × the abilities of the transport.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{LeaseAllocRequest, Transport};

use crate::{Offered, Refuses, kinds::rules, standing::invalid};

/// Whether leases over this transport have a key for datagrams.
pub(crate) fn takes_datagrams(transport: Transport) -> bool {
    matches!(transport, Transport::Udp | Transport::Both)
}

impl dyn Offered + '_ {
    /// The transport of a lease; `None` if leases of this resource have none; else a refusal that says why none fits.
    pub(crate) fn check_transport<R: Refuses>(
        &self,
        request: &LeaseAllocRequest,
    ) -> Result<Option<Transport>, R> {
        match self.fits(request) {
            true => Ok(self.transport(request)),
            false => Err(R::with(invalid, || self.why_no_transport(request))),
        }
    }

    /// Whether a transport fits the request, or the kind needs none and the resource has none.
    pub(crate) fn fits(&self, request: &LeaseAllocRequest) -> bool {
        match self.transports().is_empty() && !rules(&request.terms).needs_transport() {
            true => request.transport == Transport::Auto,
            false => self.transport(request).is_some(),
        }
    }

    /// The transport that a lease would use; `None` if none fits.
    fn transport(&self, request: &LeaseAllocRequest) -> Option<Transport> {
        let fits = |transport: &Transport| self.misfit(*transport, request).is_none();
        let named = |transport: &Transport| match request.transport {
            Transport::Auto => true,
            named => *transport == named,
        };
        let mut transports = self.transports().iter().copied();
        transports.find(|transport| named(transport) && fits(transport))
    }

    /// Why a lease cannot go over this transport.
    fn misfit(&self, transport: Transport, request: &LeaseAllocRequest) -> Option<&'static str> {
        rules(&request.terms).misfit(transport, self.is_read_only())
    }

    fn why_no_transport(&self, request: &LeaseAllocRequest) -> String {
        let (id, named) = (self.id(), request.transport);
        let has = names(self.transports());
        if named != Transport::Auto {
            // Checked first: a read-only resource does not offer transports that must write.
            return match self.misfit(named, request) {
                Some(why) => format!("resource {id} over {named}: {why}"),
                None => {
                    format!("transport {named} is not offered for resource {id}; it has {has}")
                }
            };
        }
        let transports = self.transports().iter();
        let mut whys: Vec<&str> = transports
            .filter_map(|&r| self.misfit(r, request))
            .collect();
        whys.dedup();
        let whys = whys.join("; ");
        format!("no transport of resource {id} fits, it has {has}: {whys}")
    }
}

fn names(transports: &[Transport]) -> String {
    let names: Vec<&str> = transports
        .iter()
        .map(|transport| transport.name())
        .collect();
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}
