//! Reports to schedulers that announce themselves on a link. What is found is where to dial: the connection verifies the
//! scheduler. A scheduler that has withdrawn, or is not heard any more, keeps its connection; it is only not dialled again.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use anyhow::Context;
use fabricbios_discovery::{Found, Looking};
use fabricbios_fabric::Verifier;
use fabricbios_wire::{NodeId, ResourceType};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::process::reports::Reporter;

/// The pause until the node tries again to listen on its interfaces.
const AGAIN: Duration = Duration::from_secs(10);
/// See [`await_routable`].
const ROUTABLE_WITHIN: Duration = Duration::from_secs(2);

impl Reporter {
    /// Reports to each scheduler of the node's fabric that is found on these interfaces, until the node stops.
    pub(super) async fn run_found(self, interfaces: Vec<String>) {
        let mut identities = self.membership.changes();
        let mut told = String::new();
        loop {
            identities.mark_unchanged();
            let why = match self.look(&interfaces) {
                Ok(looking) => {
                    tokio::select! {
                        () = self.report_to_found(&looking) => {}
                        // The node has joined another fabric, and its connections end.
                        _ = identities.changed() => continue,
                    }
                    String::from("the task has ended")
                }
                Err(why) => format!("{why:#}"),
            };
            if told != why {
                tracing::warn!(why, "the node does not look for schedulers; it tries again");
                told = why;
            }
            sleep(AGAIN).await;
        }
    }

    fn look(&self, interfaces: &[String]) -> anyhow::Result<Looking> {
        let fabric = self.membership.now();
        let ca = &fabric.present().context("the node's certificate")?.ca;
        let verifier = Verifier::new(ca).context("the CA's certificate")?;
        Ok(Looking::start(
            interfaces,
            verifier,
            ResourceType::Scheduler,
        )?)
    }

    /// Returns when nobody looks any more.
    async fn report_to_found(&self, looking: &Looking) {
        let mut changes = looking.changes();
        let mut reports = JoinSet::new();
        let mut dialled = HashSet::new();
        loop {
            let found = changes.borrow_and_update().clone();
            for Found { id, .. } in found {
                if !dialled.insert(id) {
                    continue;
                }
                let (reporter, mut found) = (self.clone(), looking.changes());
                reports.spawn(async move {
                    await_routable(&mut found, id).await;
                    let at = |attempt| address(&found.borrow(), id, attempt);
                    reporter.run_while(at).await;
                    id
                });
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                Some(Ok(id)) = reports.join_next() => {
                    dialled.remove(&id);
                }
            }
        }
    }
}

/// Waits for an address that does not end at the link, for a moment: answers over both families come one after the other,
/// and over a connection within the link the node has no address for clients.
async fn await_routable(found: &mut watch::Receiver<Vec<Found>>, id: NodeId) {
    let has_routable = |all: &Vec<Found>| {
        let mut addresses = all
            .iter()
            .filter(|it| it.id == id)
            .flat_map(|it| &it.addresses);
        addresses.any(is_routable)
    };
    // Whoever looks no more ends this task.
    timeout(ROUTABLE_WITHIN, found.wait_for(has_routable))
        .await
        .ok();
}

/// Where this scheduler is: its addresses in turn, those of the link alone only if there are no others.
fn address(found: &[Found], id: NodeId, attempt: usize) -> Option<String> {
    let all = &found.iter().find(|it| it.id == id)?.addresses;
    let mut usable: Vec<&SocketAddr> = all.iter().filter(|it| is_routable(it)).collect();
    if usable.is_empty() {
        usable = all.iter().collect();
    }
    let at = attempt.checked_rem(usable.len())?;
    usable.get(at).map(ToString::to_string)
}

fn is_routable(address: &SocketAddr) -> bool {
    !matches!(address, SocketAddr::V6(it) if it.scope_id() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_dialled_at_its_addresses_in_turn_while_it_is_found() {
        let id = NodeId([1; 32]);
        let found = |texts: &[&str]| {
            let addresses = texts.iter().map(|it| it.parse().unwrap()).collect();
            [Found {
                id,
                addresses,
                entries: Vec::new(),
                has_more: false,
            }]
        };
        let [one, other, of_link] = ["192.0.2.1:5704", "198.51.100.1:5704", "[fe80::1%3]:5704"];
        let at = |texts: &[&str], attempt| address(&found(texts), id, attempt).unwrap();
        let all = [one, other, of_link];
        assert_eq!([0, 1, 2].map(|it| at(&all, it)), [one, other, one]);
        assert_eq!([0, 1].map(|it| at(&[of_link], it)), [of_link, of_link]);
        let found = found(&all);
        assert_eq!(address(&found, NodeId([2; 32]), 0), None);
        assert_eq!(address(&[], id, 0), None);
    }
}
