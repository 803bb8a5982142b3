//! The ports that all leases share: makes or finds them, keeps them listening, and removes them.
//!
//! A port listens while a subsystem is linked to it. The anchor is a subsystem without namespace and hosts; it is
//! linked as long as the node runs. So each address is in use from the start on, and a port keeps listening after its
//! last lease is unlinked.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::NvmeofTransport;

use super::{
    PortSetting,
    listed_port::{ListedPort, choose_number, list_ports},
    names::{port_link_path, port_path},
    objects::failed,
    plan,
    run::{Failed, Run},
    steps,
};

/// Pause between two tries of an address that does not exist yet. No single event reports when to try: addresses
/// appear, addresses stop being tentative, and RDMA devices appear.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// A port of this node.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) setting: PortSetting,
    pub(super) number: u16,
    listens: AtomicBool,
}

/// All ports of this node.
#[derive(Debug)]
pub(super) struct Ports {
    tree: Tree,
    anchor: String,
    pub(super) list: Vec<Port>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Ports {
    /// Takes the addresses. If an address does not exist yet, a thread tries it again until it does.
    pub(super) fn open(
        tree: &Tree,
        anchor: String,
        settings: &[PortSetting],
    ) -> Result<Arc<Self>, StepError> {
        let mut run = Run::new(tree);
        match Self::take(tree, anchor, settings, &mut run) {
            Ok(ports) => {
                let ports = Arc::new(ports);
                ports.drop_unwanted()?;
                Self::keep_trying(&ports);
                Ok(ports)
            }
            Err(error) => {
                run.undo()?;
                Err(error)
            }
        }
    }

    fn take(
        tree: &Tree,
        anchor: String,
        settings: &[PortSetting],
        run: &mut Run<'_, Tree>,
    ) -> Result<Self, StepError> {
        run.take_all(&plan::anchor(&anchor))?;
        let mut list = Vec::new();
        for setting in settings {
            list.push(Port::take(tree, &anchor, *setting, run)?);
        }
        Ok(Self {
            tree: tree.clone(),
            anchor,
            list,
            stopped: Mutex::default(),
            stop: Condvar::new(),
        })
    }

    /// Removes ports of an earlier run that have no lease and that the settings no longer name.
    fn drop_unwanted(&self) -> Result<(), StepError> {
        for listed in list_ports(&self.tree)? {
            let asked_for = self.list.iter().any(|port| port.number == listed.number);
            if !asked_for && listed.subsystems == [self.anchor.as_str()] {
                self.give_back(&listed)?;
            }
        }
        Ok(())
    }

    fn keep_trying(ports: &Arc<Self>) {
        if ports.list.iter().all(Port::listens) {
            return;
        }
        let ports = Arc::clone(ports);
        thread::spawn(move || {
            while !ports.waits_to_stop() && !ports.list.iter().all(Port::listens) {
                let waiting = ports.list.iter().filter(|port| !port.listens());
                waiting.for_each(|port| port.try_again(&ports.tree, &ports.anchor));
            }
        });
    }

    fn waits_to_stop(&self) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self
            .stop
            .wait_timeout_while(stopped, BETWEEN_TRIES, |stopped| !*stopped);
        *woken.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.notify_all();
    }

    /// Removes the ports that no lease is linked to, and then the anchor, if it is linked to no port.
    pub(super) fn close(&self) -> Result<(), StepError> {
        self.stop();
        let ours = |listed: &ListedPort| self.list.iter().any(|port| port.number == listed.number);
        for listed in list_ports(&self.tree)?.iter().filter(|listed| ours(listed)) {
            if listed.subsystems.iter().all(|name| *name == self.anchor) {
                self.give_back(listed)?;
            }
        }
        let linked = list_ports(&self.tree)?;
        let linked = linked
            .iter()
            .any(|listed| listed.subsystems.contains(&self.anchor));
        if linked {
            return Ok(());
        }
        let removed = self.tree.rmdir(super::names::subsystem_path(&self.anchor));
        removed.map_err(|error| failed("remove anchor", error))
    }

    fn give_back(&self, listed: &ListedPort) -> Result<(), StepError> {
        let failed = |error| failed("give back port", error);
        if listed.subsystems.contains(&self.anchor) {
            let link = port_link_path(listed.number, &self.anchor);
            self.tree.unlink(link).map_err(failed)?;
        }
        self.tree.rmdir(port_path(listed.number)).map_err(failed)
    }
}

impl Port {
    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    fn take(
        tree: &Tree,
        anchor: &str,
        setting: PortSetting,
        run: &mut Run<'_, Tree>,
    ) -> Result<Self, StepError> {
        if setting.address.ip().is_unspecified() || setting.address.port() == 0 {
            let what = "clients connect to this address: give one that they can reach, and a port";
            return Err(StepError::new("port", format_args!("{setting}: {what}")));
        }
        let number = choose_number(&list_ports(tree)?, anchor, setting)
            .map_err(|why| StepError::new("port", format_args!("{setting}: {why}")))?;
        run.take_all(&plan::port(number, setting))?;
        let port = Self {
            setting,
            number,
            listens: AtomicBool::new(false),
        };
        match run.take(&plan::anchor_link(number, anchor)) {
            Ok(()) => port.listens.store(true, Ordering::Release),
            Err(failed) if may_work_later(&failed) => {
                tracing::warn!(%setting, why = %failed.error, "no interface has the address yet; trying again");
            }
            Err(failed) => return Err(explained(setting, failed)),
        }
        Ok(port)
    }

    fn try_again(&self, tree: &Tree, anchor: &str) {
        let setting = self.setting;
        match Run::new(tree).take(&plan::anchor_link(self.number, anchor)) {
            Ok(()) => {
                self.listens.store(true, Ordering::Release);
                tracing::info!(%setting, "an interface has the address now, and the port listens");
            }
            Err(failed) if may_work_later(&failed) => {}
            Err(failed) => {
                let error = explained(setting, failed);
                tracing::warn!(%error, "the port does not listen; trying again");
            }
        }
    }
}

impl std::fmt::Display for PortSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [kind, ..] = self.attributes();
        write!(f, "{kind} {}", self.address)
    }
}

/// Whether a later try may work: the address does not exist yet, no RDMA device has it, or there is no network.
fn may_work_later(failed: &Failed) -> bool {
    let early = [libc::EADDRNOTAVAIL, libc::ENODEV, libc::ENETUNREACH];
    failed
        .error
        .errno
        .is_some_and(|errno| early.contains(&errno))
}

fn explained(setting: PortSetting, failed: Failed) -> StepError {
    let hint = match (failed.error.errno, setting.transport) {
        (Some(libc::EADDRINUSE), _) => "; somebody else listens there: `ss -ltnp` shows whom",
        (Some(libc::EINVAL | libc::ENOENT), NvmeofTransport::Tcp) => "; try `modprobe nvmet-tcp`",
        (Some(libc::EINVAL | libc::ENOENT), NvmeofTransport::Rdma) => "; try `modprobe nvmet-rdma`",
        _ => "",
    };
    let error = failed.error;
    StepError::new(failed.step, format_args!("{setting}: {error}{hint}")).with_errno(error.errno)
}

/// Unlinks a subsystem from a port; `false`: it was not linked.
pub(super) fn unlink(
    tree: &Tree,
    step: &'static str,
    number: u16,
    subsystem: &str,
) -> Result<bool, StepError> {
    match tree.unlink(port_link_path(number, subsystem)) {
        Ok(()) => {
            steps::passed(step);
            Ok(true)
        }
        Err(error) if error.is_absent() => Ok(false),
        Err(error) => Err(failed(step, error)),
    }
}
