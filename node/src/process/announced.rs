//! The node announces itself on links, with what it has and what is available now. Who reads it learns where to dial, and the
//! connection verifies the node: nothing is granted or ended because of it.

use std::{mem, net::SocketAddr, time::Duration};

use fabricbios_discovery::Announcing;
use fabricbios_wire::{FlatEntry, InventoryForm, Reply};
use tokio::{
    sync::watch,
    time::{interval, sleep, timeout},
};

use crate::process::reports::{DRIVER_TIMEOUT, LOOK, Reporter};

/// Shortest time between two questions to the driver.
const EVERY: Duration = Duration::from_secs(1);
/// The pause until the node tries again to announce itself.
const AGAIN: Duration = Duration::from_secs(10);

impl Reporter {
    /// Announces the node on these interfaces until the driver stops. It withdraws then, or when this is dropped.
    pub(super) async fn announce(self, interfaces: Vec<String>) {
        let (tell, mut entries) = watch::channel(Vec::new());
        let announced = async {
            // Not before the first ones are there.
            if entries.changed().await.is_ok() {
                self.announce_as_member(&interfaces, entries).await;
            }
        };
        tokio::select! {
            () = self.clone().follow(tell) => {}
            () = announced => {}
        }
    }

    /// Tells of the node's resources whenever they have changed.
    async fn follow(mut self, tell: watch::Sender<Vec<FlatEntry>>) {
        let mut look = interval(LOOK);
        let mut is_first = true;
        loop {
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() {
                    return;
                },
                _ = look.tick() => self.detection.refresh().await,
            }
            match timeout(DRIVER_TIMEOUT, self.ask(InventoryForm::Flat)).await {
                Ok(Some(Ok(Reply::FlatInventory(now)))) => {
                    tell.send_if_modified(|before| {
                        let is_new = mem::take(&mut is_first) || *before != now;
                        *before = now;
                        is_new
                    });
                }
                Ok(None) => return,
                // The driver is too busy: what it told last stands until the next look.
                _ => {}
            }
            sleep(EVERY).await;
        }
    }

    /// Announces the node as a member of the fabric that it has, and of the next one when it has joined that.
    async fn announce_as_member(
        &self,
        interfaces: &[String],
        entries: watch::Receiver<Vec<FlatEntry>>,
    ) {
        let listen = match self.advertise {
            Some(ip) if self.listen.ip().is_unspecified() => {
                SocketAddr::new(ip, self.listen.port())
            }
            _ => self.listen,
        };
        let mut identities = self.membership.changes();
        let mut told = String::new();
        loop {
            let fabric = identities.borrow_and_update().clone();
            let id = fabric.id();
            match Announcing::follow(interfaces, fabric, listen, entries.clone()) {
                Ok(announcing) => {
                    tracing::info!(?interfaces, fabric = %id, "the node announces itself");
                    told.clear();
                    identities.changed().await.ok();
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
                    }
                }
            }
        }
    }
}
