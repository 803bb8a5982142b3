//! The node announces itself on links, with what it has and what is available now. Who reads it learns where to dial, and the
//! connection verifies the node: nothing is granted or ended because of it.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use fabricbios_discovery::Announcing;
use fabricbios_wire::{FlatEntry, InventoryForm, Reply, ResourceId};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, interval, sleep, timeout},
};

use crate::process::reports::{DRIVER_TIMEOUT, LOOK, Reporter};

/// Shortest time between two questions to the driver.
const EVERY: Duration = Duration::from_secs(1);
/// The pause until the node tries again to announce itself.
const AGAIN: Duration = Duration::from_secs(10);
/// A driver that is too busy for an answer may be so for this long: what it told last stands.
const BUSY_MAX: Duration = Duration::from_secs(15);

impl Reporter {
    /// Announces those resources of the node that are on offer, on these interfaces, until the driver stops or `stop` is
    /// dropped, and withdraws then.
    pub(super) async fn announce(
        self,
        interfaces: Vec<String>,
        on_offer: BTreeSet<ResourceId>,
        stop: oneshot::Receiver<()>,
    ) {
        let (tell, entries) = watch::channel(Vec::new());
        let (tell_answers, answers) = watch::channel(false);
        let follower = self.clone();
        let following = async move {
            tokio::select! {
                () = follower.follow(&on_offer, &tell, &tell_answers) => {}
                _ = stop => {}
            }
            tell_answers.send_replace(false);
        };
        tokio::join!(
            following,
            self.announce_as_member(&interfaces, entries, answers)
        );
    }

    /// Tells of the resources on offer whenever they have changed, and whether the driver answers.
    async fn follow(
        mut self,
        on_offer: &BTreeSet<ResourceId>,
        tell: &watch::Sender<Vec<FlatEntry>>,
        answers: &watch::Sender<bool>,
    ) {
        let mut look = interval(LOOK);
        let (mut answered, mut is_told) = (Instant::now(), false);
        loop {
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() {
                    return;
                },
                _ = look.tick() => self.detection.refresh().await,
            }
            match timeout(DRIVER_TIMEOUT, self.ask(InventoryForm::Flat)).await {
                Ok(Some(Ok(Reply::FlatInventory(mut now)))) => {
                    now.retain(|it| on_offer.contains(&it.resource_id));
                    tell.send_if_modified(|before| {
                        let is_new = *before != now;
                        *before = now;
                        is_new
                    });
                    answers.send_replace(true);
                    (answered, is_told) = (Instant::now(), false);
                }
                Ok(None) => return,
                Ok(Some(_)) if answered.elapsed() < BUSY_MAX => {}
                _ => {
                    answers.send_replace(false);
                    if !is_told {
                        tracing::warn!(
                            "the node does not answer itself; it does not announce itself until it does"
                        );
                        is_told = true;
                    }
                }
            }
            sleep(EVERY).await;
        }
    }

    /// Announces the node while it answers, as a member of the fabric that it has, and of the next one when it has joined that.
    async fn announce_as_member(
        &self,
        interfaces: &[String],
        entries: watch::Receiver<Vec<FlatEntry>>,
        mut answers: watch::Receiver<bool>,
    ) {
        let listen = match self.advertise {
            Some(ip) if self.listen.ip().is_unspecified() => {
                SocketAddr::new(ip, self.listen.port())
            }
            _ => self.listen,
        };
        let mut identities = self.membership.changes();
        let mut told = String::new();
        // Until nobody follows the driver any more.
        while answers.wait_for(|it| *it).await.is_ok() {
            let fabric = identities.borrow_and_update().clone();
            let id = fabric.id();
            match Announcing::follow(interfaces, fabric, listen, entries.clone()) {
                Ok(announcing) => {
                    tracing::info!(?interfaces, fabric = %id, "the node announces itself");
                    told.clear();
                    tokio::select! {
                        _ = identities.changed() => {}
                        _ = answers.wait_for(|it| !it) => {}
                    }
                    announcing.stop().await;
                }
                Err(why) => {
                    let why = why.to_string();
                    if told != why {
                        tracing::warn!(why, "the node does not announce itself; it tries again");
                        told = why;
                    }
                    tokio::select! {
                        () = sleep(AGAIN) => {}
                        Ok(()) = identities.changed() => {}
                        _ = answers.wait_for(|it| !it) => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::SystemTime};

    use fabricbios_control::{Membership, Origin};
    use fabricbios_fabric::Fabric;
    use fabricbios_wire::ResourceType;
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        driver::{Input, mailbox::Mailbox},
        inventory::detection::{Detection, Found},
    };

    const fn memory(id: u128) -> FlatEntry {
        FlatEntry {
            resource_id: ResourceId(id),
            resource_type: ResourceType::Mem,
            flags: 0,
            capacity: 9,
            available: 9,
        }
    }

    #[tokio::test]
    async fn what_a_driver_told_is_withdrawn_when_it_hangs_and_nothing_that_is_only_listed_is_told()
    {
        let root = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(root.path(), SystemTime::now()).unwrap();
        let asked = Arc::new(Notify::new());
        let wake = Arc::clone(&asked);
        let (mailbox, driver) = Mailbox::woken_by(move || wake.notify_one());
        let (change, changed) = watch::channel(());
        let reporter = Reporter {
            membership: Membership::new(fabric),
            driver,
            detection: Arc::new(Detection::fixed(Found::default())),
            listen: "127.0.0.1:5701".parse().unwrap(),
            advertise: None,
            origin: Origin::default(),
            changed,
        };
        let on_offer = BTreeSet::from([ResourceId(1)]);
        let (tell, entries) = watch::channel(Vec::new());
        let (tell_answers, mut answers) = watch::channel(false);
        let following =
            tokio::spawn(async move { reporter.follow(&on_offer, &tell, &tell_answers).await });
        for is_last in [false, true] {
            // It answers one question, and no other one.
            let requester = loop {
                match mailbox.take_request() {
                    Some(Input::Request { requester, .. }) if !requester.reply.is_closed() => {
                        break requester;
                    }
                    Some(_given_up) => {}
                    None if mailbox.begin_to_wait() => asked.notified().await,
                    None => {}
                }
            };
            let told = vec![memory(1), memory(2)];
            let told = Ok(Reply::FlatInventory(told));
            requester.reply.send(told).expect("somebody waits");
            answers.wait_for(|it| *it).await.unwrap();
            assert_eq!(*entries.borrow(), [memory(1)]);
            if !is_last {
                answers.wait_for(|it| !it).await.unwrap();
            }
        }
        following.abort();
        drop(change);
    }
}
