//! A running node: journal, table, providers, driver and control plane.
//!
//! The control plane opens last: before that, the journal is read, ended leases are marked and fences are restored.

use std::{io, mem, net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::Context;
use fabricbios_control::{Limits, Membership, Origin, Server};
use fabricbios_helper::InFlight;
use fabricbios_lease::{Durability, EarlierRun, FenceRecord, LeaseRecord, LeaseTable, Now, Policy};
use fabricbios_wire::{LeaseId, NodeId, ResourceId};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    driver::{Driver, Input, Machine, dispatcher::Dispatcher, mailbox::Sender, requests::Requests},
    inventory::{
        Inventory,
        detection::{Detection, Found, lack_of_room},
        hardware::Sources,
    },
    journal::{Change, Key, Recovered, past::Past, records},
    kinds::{
        self, KINDS, Kind, Offered,
        detect::Looking,
        gpu::{FoundGpus, GpuParts},
        net,
        settings::KindSettings,
    },
    monitor::{self, DataPaths, Port, Reread, Trouble, Watched},
    process::{clock, reports::Reporter},
    settings::Settings,
};

/// How long closing the clients' connections may take at the end.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long the end waits until the node has withdrawn its announcement.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// A running node.
#[derive(Debug)]
pub struct Service {
    server: Server,
    /// The pages of metrics and health, if they are served. A node that goes down serves them until its end.
    pages: Option<Port>,
    driver: Sender<Input>,
    stopped: oneshot::Receiver<io::Result<Vec<LeaseId>>>,
    settled: Option<oneshot::Receiver<()>>,
    /// The reports to schedulers.
    reports: JoinSet<()>,
    /// The task that announces the node, if it does.
    announcing: JoinSet<()>,
    /// Dropped, it ends that task.
    announces: Option<oneshot::Sender<()>>,
}

impl Service {
    /// Starts a node with the recovered journal and the resources on offer. The caller has locked the state directory
    /// of `settings`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A record of the journal cannot be read, a resource cannot be made ready, the watchdog does not start, or the
    /// address is taken.
    pub fn start(
        settings: &Settings,
        membership: &Membership,
        past: Past,
        mut offered: Vec<Offered>,
        gpus: GpuParts,
        data_paths: DataPaths,
        helper_calls: InFlight,
    ) -> anyhow::Result<Self> {
        let Past {
            mailbox,
            driver,
            journal,
            recovered,
        } = past;
        let epoch = recovered.epoch;
        let changes = { offered.iter_mut() }.flat_map(|it| mem::take(&mut it.changes));
        let changes: Vec<Change> = changes.collect();
        let trouble = Trouble::default();
        let detection = detection(settings.kinds.clone(), gpus.found, trouble.clone());
        let detection = Arc::new(detection);
        let node_id = membership.now().node_id();
        let (table, dispatcher, inventory) = prepare(
            settings,
            node_id,
            recovered,
            offered,
            detection.clone(),
            driver.clone(),
        )?;
        let requests = Requests {
            membership: membership.clone(),
            node_id,
            epoch,
            advertise: settings.advertise,
            detection: detection.clone(),
            driver: driver.clone(),
        };
        let server = Server::start(
            settings.listen(),
            membership,
            connection_limits(settings),
            Arc::new(move |request| requests.take(request)),
            gpus.sessions,
        )?;
        let watched = Watched {
            membership: membership.clone(),
            driver: driver.clone(),
            detection: detection.clone(),
            data_paths,
            helper_calls,
            state_dir: settings.state_dir().to_owned(),
        };
        let pages = { settings.metrics_listen }.map(|at| {
            monitor::start(at, settings.metrics_identity.clone(), watched, trouble)
                .with_context(|| format!("--metrics-listen {at}"))
        });
        let pages = pages.transpose()?;
        let on_offer = inventory.on_offer();
        let (tell_settled, settled) = oneshot::channel();
        let machine = Machine {
            dispatcher,
            journal,
        };
        let mut new = Driver::new(table, machine, inventory, mailbox)
            .with_settled_signal(tell_settled)
            .with_changes(changes);
        let (mut reports, mut announcing) = (JoinSet::new(), JoinSet::new());
        let (announces, stop) = oneshot::channel();
        let links = settings.discover.len() + settings.announce.len();
        if !settings.scheduler.is_empty() || links > 0 {
            let (tell_changed, changed) = watch::channel(());
            new = new.with_change_signal(tell_changed);
            let reporter = Reporter {
                membership: membership.clone(),
                driver: driver.clone(),
                detection,
                listen: server.local_addr(),
                advertise: settings.advertise,
                origin: Origin::default(),
                changed,
            };
            for scheduler in &settings.scheduler {
                reports.spawn(reporter.clone().run(scheduler.to_string()));
            }
            if !settings.discover.is_empty() {
                reports.spawn(reporter.clone().run_found(settings.discover.clone()));
            }
            if !settings.announce.is_empty() {
                announcing.spawn(reporter.announce(settings.announce.clone(), on_offer, stop));
            }
        }
        let stopped = drive(new)?;
        Ok(Self {
            server,
            pages,
            driver,
            stopped,
            settled: Some(settled),
            reports,
            announcing,
            announces: Some(announces),
        })
    }

    /// The address that the control plane listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Where the pages are, if they are served already.
    #[must_use]
    pub fn pages_url(&self) -> Option<String> {
        self.pages.as_ref().and_then(Port::url)
    }

    /// Reads the certificates of the pages again.
    pub(crate) fn reread_pages(&self) -> Option<Box<Reread>> {
        self.pages.as_ref().map(Port::reread)
    }

    /// Takes over the limits of these settings. Leases and connections that are there stay.
    pub(crate) fn change_limits(&self, settings: &Settings) {
        self.server.change_limits(connection_limits(settings));
        let limits = Box::new(lease_limits(settings));
        self.driver.notify(Input::Limits(limits));
    }

    /// The mailbox of the driver.
    pub(crate) fn driver(&self) -> Sender<Input> {
        self.driver.clone()
    }

    /// Waits until leases of an earlier run are adopted or cut, for a limited time.
    pub async fn settled(&mut self) {
        if let Some(settled) = self.settled.take() {
            // The caller learns from `stopped` if the driver has stopped.
            settled.await.ok();
        }
    }

    /// Starts to revoke every lease; [`Service::stopped`] returns when all leases are over.
    pub fn drain(&mut self) {
        self.tell_nobody();
        self.driver.notify(Input::Drain);
    }

    /// Stops without revoking leases: the end of the process cuts them.
    pub fn halt(&mut self) {
        self.tell_nobody();
        self.driver.notify(Input::Halt);
    }

    /// A node that grants nothing is no candidate: its connections to schedulers end, and it withdraws.
    fn tell_nobody(&mut self) {
        self.reports.abort_all();
        self.announces = None;
    }

    /// Waits until the driver has stopped. Returns the leases that it could not cut.
    ///
    /// # Errors
    /// The driver's thread panicked, or the journal could not be closed.
    pub async fn stopped(&mut self) -> anyhow::Result<Vec<LeaseId>> {
        let outcome = (&mut self.stopped).await;
        outcome
            .context("the driver's thread panicked")?
            .context(
                "stopped before every cut was in the journal; leases that ended meanwhile may be live again at the next start",
            )
    }

    /// Closes the clients' connections, and waits until the node has withdrawn its announcement.
    pub async fn close(mut self) {
        self.tell_nobody();
        let withdrawn = timeout(WITHDRAW_TIMEOUT, self.announcing.join_next());
        // The other members forget a node that could not withdraw.
        let (_, _) = tokio::join!(self.server.shutdown(GOODBYE), withdrawn);
    }
}

/// Detects the hardware of this machine that the settings offer and list.
fn detection(settings: KindSettings, gpus: FoundGpus, pages: Trouble) -> Detection {
    Detection::new(move || {
        let looking = Looking {
            settings: &settings,
            sources: &Sources::of_this_machine(),
            gpus: &gpus,
        };
        Found {
            of_node: lack_of_room(settings.shared.state_dir()).or_else(|| pages.why()),
            ..looking.look()
        }
    })
}

/// Runs the driver on a thread of its own, so that the control plane cannot delay a deadline.
fn drive(driver: Driver<Machine>) -> anyhow::Result<oneshot::Receiver<io::Result<Vec<LeaseId>>>> {
    let (tell, stopped) = oneshot::channel();
    thread::Builder::new()
        .name("driver".into())
        .spawn(move || {
            // The receiver is dropped only when the daemon ends.
            tell.send(driver.run()).ok();
        })
        .context("start the driver's thread")?;
    Ok(stopped)
}

/// Builds the parts of the driver from the hardware and the journal.
fn prepare(
    settings: &Settings,
    node_id: NodeId,
    recovered: Recovered,
    offered: Vec<Offered>,
    detection: Arc<Detection>,
    driver: Sender<Input>,
) -> anyhow::Result<(LeaseTable, Dispatcher, Inventory)> {
    let mut inventory = Inventory::new(node_id, recovered.epoch, detection);
    let mut dispatcher = Dispatcher::new(Arc::new(move |owner, report| {
        let at = clock::now().boot;
        let is_progress = report.is_progress();
        let input = Input::Report { at, report };
        match is_progress {
            true => driver.report_progress(owner, input),
            false => _ = driver.report(owner, input),
        }
    }));
    let mut table = LeaseTable::new(policy(settings, &inventory));
    offered.iter().for_each(|it| it.offer(&mut table, true));
    let (now, boot_id) = (clock::now(), clock::boot_id());
    let is_known = |id| offered.iter().any(|it| it.knows(id));
    restore(&mut table, now, &boot_id, &recovered, &is_known)?;
    offered.iter().for_each(|it| it.offer(&mut table, false));
    kinds::watch_over(&offered, &table)?;
    for offered in offered {
        offered.start(&mut table, &mut dispatcher, &mut inventory, clock::now())?;
    }
    Ok((table, dispatcher, inventory))
}

/// Limits of the control plane.
pub(crate) fn connection_limits(settings: &Settings) -> Limits {
    let default = Limits::default();
    let or = |setting: Option<u32>, default| setting.map_or(default, |it| it as usize);
    Limits {
        connections_max: or(settings.connections_max, default.connections_max),
        connections_per_source_max: or(
            settings.connections_per_source_max,
            default.connections_per_source_max,
        ),
        connections_per_tenant_max: or(
            settings.connections_per_tenant_max,
            default.connections_per_tenant_max,
        ),
        ..default
    }
}

fn policy(settings: &Settings, inventory: &Inventory) -> Policy {
    let limits = lease_limits(settings);
    let cut_within = settings
        .cut_within_ms
        .map(|ms| Duration::from_millis(ms.into()));
    Policy {
        cut_within: cut_within.unwrap_or(limits.cut_within),
        profile: settings.kinds.shared.profile.unwrap_or_default().into(),
        attach_at: settings.kinds.memory.rdma_cm_listen,
        detected: inventory.kinds(),
        ..limits
    }
}

/// The limits of leases that can change while the node runs.
pub(crate) fn lease_limits(settings: &Settings) -> Policy {
    let default = Policy::default();
    let capacity =
        |kind: &Kind| Some((kind.resource_type, (kind.per_tenant_max)(&settings.kinds)?));
    Policy {
        tenant_leases_max: settings
            .leases_per_tenant_max
            .map_or(default.tenant_leases_max, |most| most as usize),
        tenant_queue_pairs_max: settings
            .queue_pairs_per_tenant_max
            .map_or(default.tenant_queue_pairs_max, |most| most as usize),
        tenant_capacity_max: KINDS.iter().filter_map(capacity).collect(),
        tenant_requests_per_sec: settings
            .requests_per_tenant_max
            .unwrap_or(default.tenant_requests_per_sec),
        lease_secs_max: settings.lease_secs_max.unwrap_or(default.lease_secs_max),
        grace_secs_max: settings.grace_secs_max.unwrap_or(default.grace_secs_max),
        network: net::rights::rights(&settings.kinds.net),
        ..default
    }
}

/// True if the wall clock is plausible after a reboot: this boot began after the last write of the previous run. A
/// clock without a battery starts years in the past.
fn may_be(now: Now, written_unix_ms: u64) -> bool {
    let up_ms = now.boot.0 / 1_000_000;
    now.unix_ms.saturating_sub(up_ms) + CLOCK_GRAIN_MS >= written_unix_ms
}

/// Battery-backed clocks count whole seconds.
const CLOCK_GRAIN_MS: u64 = 2_000;

/// Restores leases and fences. `is_known`: the resource is the same as in the last run.
///
/// # Errors
/// A record cannot be read.
pub fn restore(
    table: &mut LeaseTable,
    now: Now,
    boot_id: &str,
    recovered: &Recovered,
    is_known: &dyn Fn(ResourceId) -> bool,
) -> anyhow::Result<()> {
    let same_boot = recovered.last_boot_id.as_deref() == Some(boot_id);
    for (key, bytes) in &recovered.records {
        let Key::Lease(id) = key else { continue };
        let record: LeaseRecord = records::decode(bytes).with_context(|| format!("lease {id}"))?;
        let id = record.resource_id;
        // Kernel state of leases stays in place even if the resource is not the resource of the last run.
        let stays = table.durability(id).is_some_and(Durability::leases_stay);
        let run = EarlierRun {
            same_boot: same_boot && (is_known(id) || stays),
            wall_clock_trusted: may_be(now, recovered.written_unix_ms),
        };
        table.restore_lease(now, record, run);
    }
    // At the first start there is neither an earlier boot nor a fence.
    let rebooted = recovered.last_boot_id.is_some() && !same_boot;
    for (key, bytes) in &recovered.records {
        let Key::Fence(id) = key else { continue };
        let fence: FenceRecord =
            records::decode(bytes).with_context(|| format!("fence of {id}"))?;
        tracing::warn!(resource_id = %id, reason = %fence.reason, rebooted, "a fence of an earlier run stays");
        table.restore_fence(now, fence, rebooted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::BootTime;

    use super::*;

    #[test]
    fn a_clock_that_went_back_over_a_reboot_is_not_believed() {
        let up = |secs: u64, unix_ms| Now {
            boot: BootTime(secs * 1_000_000_000),
            unix_ms,
        };
        let written = 1_800_000_000_000;
        assert!(may_be(up(30, written + 40_000), written));
        // The clock shows the time of the last write, but the machine has been up for longer than the time since then.
        assert!(!may_be(up(30, written + 10_000), written));
        assert!(!may_be(up(30, 30_000), written));
    }
}
