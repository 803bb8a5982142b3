//! A node that serves: journal, table, backends, driver and control plane, put together.
//!
//! Nothing is advertised before what an earlier run left is known: the journal is read, leases that
//! died are marked so, fences stand; then the control plane opens.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, thread, time::Duration};

use anyhow::Context;
use fabricbios_control::{Fabric, Limits, Server};
use fabricbios_lease::{FenceRecord, LeaseRecord, LeaseTable, Policy};
use fabricbios_wire::ResourceType;
use tokio::sync::{mpsc, oneshot};

use crate::{
    backends::Backends,
    clock,
    config::Settings,
    desk::Desk,
    detect::{self, Detected, Sources},
    driver::{Driver, Input},
    inventory::Inventory,
    journal::{Journal, Recovered},
    mailbox::{Mailbox, Sender},
    memory::OfferedMemory,
    records,
};

/// Requests between the control plane and the driver; more wait on their streams.
const REQUESTS_QUEUED: usize = 1_024;

/// How long goodbyes to clients may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// A node that serves.
#[derive(Debug)]
pub struct Service {
    server: Server,
    driver: Sender<Input>,
    stopped: oneshot::Receiver<io::Result<()>>,
}

impl Service {
    /// Starts on the state directory of `settings`, which the caller has locked, with the memory
    /// that is on offer. Must be called within a tokio runtime.
    pub fn start(
        settings: &Settings,
        fabric: &Fabric,
        memory: Option<OfferedMemory>,
    ) -> anyhow::Result<Self> {
        let (mailbox, driver) = Mailbox::new().context("create the driver's mailbox")?;
        let (journal, recovered) = open_journal(settings, driver.clone())?;
        let epoch = recovered.epoch;
        let (table, backends, inventory) =
            prepare(settings, fabric, recovered, memory, driver.clone())?;
        let (asked, requests) = mpsc::channel(REQUESTS_QUEUED);
        let server = Server::start(settings.listen(), fabric, Limits::default(), asked)?;
        let desk = Desk {
            ca: fabric.ca(),
            node_id: fabric.node_id(),
            epoch,
            listen: server.local_addr(),
            advertise: settings.advertise,
        };
        let stopped = drive(Driver::new(table, backends, journal, inventory, mailbox))?;
        tokio::spawn(desk.serve(requests, driver.clone()));
        Ok(Self {
            server,
            driver,
            stopped,
        })
    }

    /// Where the control plane listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Starts to take every lease back; [`Service::stopped`] says when that is done.
    pub fn drain(&self) {
        self.driver.ask(Input::Drain);
    }

    /// Stops without taking anything back: what is left is cut by the end of the process.
    pub fn halt(&self) {
        self.driver.done(Input::Halt);
    }

    /// Waits until the driver has stopped, by itself or drained.
    pub async fn stopped(&mut self) -> anyhow::Result<()> {
        let outcome = (&mut self.stopped).await;
        outcome
            .context("the driver's thread panicked")?
            .context("the driver stopped")
    }

    /// Says goodbye to the clients.
    pub async fn close(self) {
        self.server.shutdown(GOODBYE).await;
    }
}

/// The driver on a thread of its own: nothing that the control plane does can delay a deadline.
fn drive(driver: Driver) -> anyhow::Result<oneshot::Receiver<io::Result<()>>> {
    let (tell, stopped) = oneshot::channel();
    thread::Builder::new()
        .name("driver".into())
        .spawn(move || {
            // The receiver only goes away when the daemon is leaving anyway.
            tell.send(driver.run()).ok();
        })
        .context("start the driver's thread")?;
    Ok(stopped)
}

fn open_journal(
    settings: &Settings,
    driver: Sender<Input>,
) -> anyhow::Result<(Journal, Recovered)> {
    let path: PathBuf = settings.state_dir().join("journal.redb");
    let on_commit = Box::new(move |outcome| {
        driver.done(Input::Durable(outcome));
    });
    Ok(Journal::open(&path, &clock::boot_id(), on_commit)?)
}

/// Everything that the driver owns, from the hardware and from what was known before.
fn prepare(
    settings: &Settings,
    fabric: &Fabric,
    recovered: Recovered,
    memory: Option<OfferedMemory>,
    driver: Sender<Input>,
) -> anyhow::Result<(LeaseTable, Backends, Inventory)> {
    let detected = match settings.auto_detect {
        true => detect::detect(&Sources::of_this_machine()),
        false => Detected::default(),
    };
    for warning in &detected.warnings {
        tracing::warn!("{warning}");
    }
    let mut inventory = Inventory {
        node_id: fabric.node_id(),
        epoch: recovered.epoch,
        detected,
        arenas: Vec::new(),
    };
    let mut backends = Backends::new(Arc::new(move |report| {
        driver.done(Input::Report {
            at: clock::now().boot,
            report,
        });
    }));
    let mut table = LeaseTable::new(policy(settings, &inventory));
    if let Some(offered) = &memory {
        table.offer(ResourceType::Mem, offered.offer.clone());
    }
    let is_known = memory.as_ref().is_some_and(|offered| offered.is_known);
    restore(&mut table, recovered, is_known)?;
    if let Some(offered) = memory {
        let resource_id = offered.offer.resource_id;
        offered.scrub_unheld(&table.held(resource_id).collect::<Vec<_>>())?;
        backends.add(resource_id, offered.backend);
        inventory.arenas.push(offered.arena);
    }
    Ok((table, backends, inventory))
}

fn policy(settings: &Settings, inventory: &Inventory) -> Policy {
    let default = Policy::default();
    let cut_within = settings
        .cut_within_ms
        .map(|ms| Duration::from_millis(ms.into()));
    Policy {
        lease_secs_max: settings.lease_secs_max.unwrap_or(default.lease_secs_max),
        grace_secs_max: settings.grace_secs_max.unwrap_or(default.grace_secs_max),
        cut_within: cut_within.unwrap_or(default.cut_within),
        detected: inventory.kinds(),
        ..default
    }
}

/// `is_known`: the memory on offer is that of the last run.
fn restore(table: &mut LeaseTable, recovered: Recovered, is_known: bool) -> anyhow::Result<()> {
    let now = clock::now();
    let same_boot = recovered.last_boot_id == Some(clock::boot_id());
    for (id, bytes) in recovered.leases {
        let record: LeaseRecord = records::decode(&bytes).with_context(|| format!("lease {id}"))?;
        table.restore_lease(now, record, same_boot && is_known);
    }
    // At the first start there is neither a boot before nor a fence.
    let rebooted = recovered.last_boot_id.is_some() && !same_boot;
    for (id, bytes) in recovered.fences {
        let fence: FenceRecord =
            records::decode(&bytes).with_context(|| format!("fence of {id}"))?;
        tracing::warn!(resource_id = %id, reason = %fence.reason, rebooted, "fenced since before");
        table.restore_fence(now, fence, rebooted);
    }
    Ok(())
}
