//! What a scheduler tells of the leases of the fleet, compared with what the nodes have written.

use std::{collections::BTreeSet, time::Duration};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{LeaseAllocRequest, LeaseId, NodeId, RefusalClass, ResourceId, ResourceType};
use tokio::time::{Instant, sleep};

use crate::fleet::Fleet;

/// A lease that has a part of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) lease_id: LeaseId,
    pub(crate) node_id: NodeId,
    pub(crate) resource_id: ResourceId,
    pub(crate) tenant: String,
    pub(crate) capacity: u64,
}

/// Waits until this scheduler tells exactly the leases and nodes that there are. Returns how long it took.
///
/// # Errors
/// It did not within `patience`; how they differ.
pub(crate) async fn agree(
    fleet: &Fleet,
    scheduler: usize,
    patience: Duration,
) -> Result<Duration, String> {
    let begin = Instant::now();
    loop {
        let differ = match told(fleet, scheduler).await {
            Ok(told) => difference(&fleet.held(), &told),
            Err(error) => Some(error.to_string()),
        };
        match differ {
            None => return Ok(begin.elapsed()),
            Some(why) if begin.elapsed() > patience => return Err(why),
            Some(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Waits until this scheduler refuses for good what no node has: it knows all members, and each has reported.
///
/// # Errors
/// It did not within `patience`; what it said last.
pub(crate) async fn knows_all_members(
    fleet: &Fleet,
    scheduler: usize,
    patience: Duration,
) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let asked = async {
            let client = fleet.operator(scheduler).await?;
            client.acquire_async(wanted_of_none()).await
        };
        match asked.await {
            Err(Error::Refused(it)) if it.class == RefusalClass::Permanent => return Ok(()),
            other if begin.elapsed() > patience => {
                return Err(format!("no refusal for good: {:?}", other.err()));
            }
            _ => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn wanted_of_none() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, 1 << 40, 60)
}

async fn told(fleet: &Fleet, scheduler: usize) -> Result<BTreeSet<Held>, Error> {
    let client: Node = fleet.operator(scheduler).await?;
    let reporting = client.nodes_async().await?.len();
    if reporting != fleet.nodes() {
        let why = format!("{reporting} of {} nodes report", fleet.nodes());
        return Err(Error::Usage(why));
    }
    let leases = client.fleet_leases_async().await?;
    let held = leases.into_iter().map(|it| Held {
        lease_id: it.lease.lease_id,
        node_id: it.node_id,
        resource_id: it.lease.resource_id,
        tenant: it.lease.tenant,
        capacity: it.lease.capacity,
    });
    Ok(held.collect())
}

fn difference(held: &BTreeSet<Held>, told: &BTreeSet<Held>) -> Option<String> {
    let [lacks, has_more] =
        [held.difference(told), told.difference(held)].map(Iterator::collect::<Vec<_>>);
    (!(lacks.is_empty() && has_more.is_empty())).then(|| {
        format!(
            "of {} leases it lacks {} ({:?}) and has {} that are not there ({:?})",
            held.len(),
            lacks.len(),
            lacks.first(),
            has_more.len(),
            has_more.first()
        )
    })
}
