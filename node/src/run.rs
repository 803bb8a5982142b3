//! What starts in which order, and how it stops.
//!
//! Nothing is advertised before what an earlier run left is known: the journal is read, leases that
//! died are marked so, fences stand; then the hardware is opened, then the control plane.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use fabricbios_control::{Fabric, Limits, Server};
use fabricbios_lease::{FenceRecord, LeaseRecord, LeaseTable, Policy};
use fabricbios_wire::ResourceType;
use nix::fcntl::{Flock, FlockArg};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};

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
    memory, ready,
};

/// Requests between the control plane and the driver; more wait on their streams.
const REQUESTS_QUEUED: usize = 1_024;

/// How long goodbyes to clients may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs `control-server` until it is told to stop.
pub fn control_server(settings: Settings) -> anyhow::Result<()> {
    let settings = settings.with_file()?;
    let _lock = lock_state_dir(settings.state_dir())?;
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now())?;
    let (mailbox, driver) = Mailbox::new().context("create the driver's mailbox")?;
    let (journal, recovered) = open_journal(&settings, driver.clone())?;
    let epoch = recovered.epoch;
    let (table, backends, inventory) = prepare(&settings, &fabric, recovered, driver.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime of the control plane")?;
    let desk = |server: &Server| Desk {
        ca: fabric.ca(),
        node_id: fabric.node_id(),
        epoch,
        listen: server.local_addr(),
        advertise: settings.advertise,
    };
    let (asked, requests) = mpsc::channel(REQUESTS_QUEUED);
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let server = Server::start(settings.listen(), &fabric, Limits::default(), asked)?;
        let driven = Driver::new(table, backends, journal, inventory, mailbox);
        let stopped = drive(driven)?;
        tokio::spawn(desk(&server).serve(requests, driver.clone()));
        ready::announce(&settings, &fabric, server.local_addr());
        let outcome = until_stopped(&mut signals, &driver, stopped).await;
        server.shutdown(GOODBYE).await;
        outcome
    })
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

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The first signal drains, the second does not wait.
async fn until_stopped(
    signals: &mut Signals,
    driver: &Sender<Input>,
    mut stopped: oneshot::Receiver<io::Result<()>>,
) -> anyhow::Result<()> {
    tokio::select! {
        outcome = &mut stopped => return driver_outcome(outcome),
        () = signals.next() => tracing::info!("stopping: taking every lease back"),
    }
    ready::stopping();
    driver.send(Input::Drain);
    tokio::select! {
        outcome = &mut stopped => driver_outcome(outcome),
        () = signals.next() => {
            driver.send(Input::Halt);
            bail!("told to stop at once: what was not cut yet is cut by the end of this process")
        }
    }
}

fn driver_outcome(
    outcome: Result<io::Result<()>, oneshot::error::RecvError>,
) -> anyhow::Result<()> {
    outcome
        .context("the driver's thread panicked")?
        .context("the driver stopped")
}

/// One daemon to a state directory.
fn lock_state_dir(path: &Path) -> anyhow::Result<Flock<File>> {
    if !path.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| {
                format!(
                    "create the state directory {}; choose another with --state-dir",
                    path.display()
                )
            })?;
    }
    let lock_path = path.join("daemon.lock");
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .with_context(|| format!("open {}; is the directory yours?", lock_path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        anyhow::anyhow!(
            "{} is in use ({errno}): another daemon runs on this state directory; stop it or \
             choose another with --state-dir",
            path.display()
        )
    })
}

fn open_journal(
    settings: &Settings,
    driver: Sender<Input>,
) -> anyhow::Result<(Journal, Recovered)> {
    let path: PathBuf = settings.state_dir().join("journal.redb");
    let on_commit = Box::new(move |outcome| {
        driver.send(Input::Durable(outcome));
    });
    Ok(Journal::open(&path, &clock::boot_id(), on_commit)?)
}

/// Everything that the driver owns, from the hardware and from what was known before.
fn prepare(
    settings: &Settings,
    fabric: &Fabric,
    recovered: Recovered,
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
        driver.send(Input::Report(report));
    }));
    let mut table = LeaseTable::new(policy(settings, &inventory));
    if let Some(offered) = memory::open(settings, fabric.node_id())? {
        backends.add(offered.offer.resource_id, offered.backend);
        table.offer(ResourceType::Mem, offered.offer);
        inventory.arenas.push(offered.arena);
    }
    restore(&mut table, recovered)?;
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

fn restore(table: &mut LeaseTable, recovered: Recovered) -> anyhow::Result<()> {
    let now = clock::now();
    let damaged =
        "the journal holds a record that this version cannot read; move it away to start anew";
    for (id, bytes) in recovered.leases {
        let record: LeaseRecord =
            postcard::from_bytes(&bytes).with_context(|| format!("lease {id}: {damaged}"))?;
        table.restore_lease(now, record);
    }
    let rebooted = recovered
        .last_boot_id
        .is_some_and(|last| last != clock::boot_id());
    for (id, bytes) in recovered.fences {
        let fence: FenceRecord =
            postcard::from_bytes(&bytes).with_context(|| format!("fence of {id}: {damaged}"))?;
        tracing::warn!(resource_id = %id, reason = %fence.reason, rebooted, "fenced since before");
        table.restore_fence(now, fence, rebooted);
    }
    Ok(())
}
