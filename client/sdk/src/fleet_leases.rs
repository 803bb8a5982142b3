//! The leases of a fabric, as a scheduler knows them.

use fabricbios_wire::{FleetLease, FleetLeases, LeaseId, NodeId, Reply, Request};

use crate::{Error, Node, runtime::wait};

/// Most leases that a scheduler may list.
const LEASES_MAX: usize = 1 << 24;

impl Node {
    /// Asks a scheduler for the caller's leases at all nodes that report to it, for an operator all leases, by ascending
    /// id: those that are not over, or not clean yet. The list is read in pages: a lease that comes or goes meanwhile
    /// may be in it or not.
    ///
    /// # Errors
    /// [`Error::Usage`] if this is no scheduler.
    pub async fn fleet_leases_async(&self) -> Result<Vec<FleetLease>, Error> {
        self.connected().await?;
        if !self.is_scheduler() {
            return Err(Error::Usage(format!(
                "{} is a node, and no scheduler: it knows the leases of no other node; name a scheduler of the fabric instead",
                self.address()
            )));
        }
        let mut leases: Vec<FleetLease> = Vec::new();
        let (mut after, mut after_node) = (LeaseId(0), NodeId([0; 32]));
        loop {
            let request = Request::FleetLeases { after, after_node };
            let FleetLeases { leases: page, more } = match self.call_async(request).await? {
                Reply::FleetLeases(page) => page,
                other => return Err(self.unexpected("a list of leases", &other)),
            };
            // A scheduler must not keep its clients for ever.
            let before = (after, after_node);
            for it in &page {
                let key = (it.lease.lease_id, it.node_id);
                if key <= (after, after_node) {
                    return Err(self.protocol("its list of leases does not ascend".to_owned()));
                }
                (after, after_node) = key;
            }
            leases.extend(page);
            if !more {
                return Ok(leases);
            }
            if (after, after_node) == before || leases.len() > LEASES_MAX {
                let why = format!(
                    "a page of its list of leases is empty and not the last one, or the list has more than {LEASES_MAX}"
                );
                return Err(self.protocol(why));
            }
        }
    }

    /// Asks a scheduler for leases, blocking; see [`Node::fleet_leases_async`].
    pub fn fleet_leases(&self) -> Result<Vec<FleetLease>, Error> {
        wait(self.fleet_leases_async())
    }
}
