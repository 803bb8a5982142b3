//! The ports that all leases share: found again or made, kept listening by the anchor, given back.
//!
//! A port listens while a subsystem is linked to it. The anchor has no namespace and lets nobody in, and is
//! linked as long as the node runs; so an address is taken at start, and an unlink of the last lease does not stop
//! the port.

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
    PortSetting, faults,
    names::{link_at, port_at},
    objects::failed,
    plan,
    run::{Failed, Run},
    survey::{Seen, choose, survey},
};

/// Between two tries of an address that does not exist yet. There is no one event for it: addresses come
/// and cease to be tentative, and RDMA devices come.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// One of ours.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) setting: PortSetting,
    pub(super) number: u16,
    listens: AtomicBool,
}

/// All of ours.
#[derive(Debug)]
pub(super) struct Ports {
    tree: Tree,
    anchor: String,
    pub(super) list: Vec<Port>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Ports {
    /// Takes the addresses. One that does not exist yet is tried again, by a thread, until it does.
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

    /// Ports of an earlier run that are not asked for any more and have no lease.
    fn drop_unwanted(&self) -> Result<(), StepError> {
        for seen in survey(&self.tree)? {
            let asked_for = self.list.iter().any(|port| port.number == seen.number);
            if !asked_for && seen.subsystems == [self.anchor.as_str()] {
                self.give_back(&seen)?;
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

    /// Takes away the ports that no lease is linked to, and the anchor, if it is linked to none then.
    pub(super) fn close(&self) -> Result<(), StepError> {
        self.stop();
        let ours = |seen: &Seen| self.list.iter().any(|port| port.number == seen.number);
        for seen in survey(&self.tree)?.iter().filter(|seen| ours(seen)) {
            if seen.subsystems.iter().all(|name| *name == self.anchor) {
                self.give_back(seen)?;
            }
        }
        let linked = survey(&self.tree)?;
        let linked = linked
            .iter()
            .any(|seen| seen.subsystems.contains(&self.anchor));
        if linked {
            return Ok(());
        }
        let removed = self.tree.rmdir(super::names::subsystem_at(&self.anchor));
        removed.map_err(|error| failed("remove anchor", error))
    }

    fn give_back(&self, seen: &Seen) -> Result<(), StepError> {
        let failed = |error| failed("give back port", error);
        if seen.subsystems.contains(&self.anchor) {
            let link = link_at(seen.number, &self.anchor);
            self.tree.unlink(link).map_err(failed)?;
        }
        self.tree.rmdir(port_at(seen.number)).map_err(failed)
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
            let what = "a client is told this address: give one that it can reach, and a port";
            return Err(StepError::new("port", format_args!("{setting}: {what}")));
        }
        let number = choose(&survey(tree)?, anchor, setting)
            .map_err(|why| StepError::new("port", format_args!("{setting}: {why}")))?;
        run.take_all(&plan::port(number, setting))?;
        let port = Self {
            setting,
            number,
            listens: AtomicBool::new(false),
        };
        match run.take(&plan::anchor_link(number, anchor)) {
            Ok(()) => port.listens.store(true, Ordering::Release),
            Err(failed) if is_early(&failed) => {
                tracing::warn!(%setting, why = %failed.trouble, "address does not exist yet; trying on");
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
                tracing::info!(%setting, "the address has come, and the port listens");
            }
            Err(failed) if is_early(&failed) => {}
            Err(failed) => {
                let error = explained(setting, failed);
                tracing::warn!(%error, "the port does not listen; trying on");
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

/// Whether it may work later: no such address, no RDMA device that has it, no network.
fn is_early(failed: &Failed) -> bool {
    let early = [libc::EADDRNOTAVAIL, libc::ENODEV, libc::ENETUNREACH];
    failed
        .trouble
        .errno
        .is_some_and(|errno| early.contains(&errno))
}

fn explained(setting: PortSetting, failed: Failed) -> StepError {
    let hint = match (failed.trouble.errno, setting.transport) {
        (Some(libc::EADDRINUSE), _) => "; somebody else listens there: `ss -ltnp` shows whom",
        (Some(libc::EINVAL | libc::ENOENT), NvmeofTransport::Tcp) => "; try `modprobe nvmet-tcp`",
        (Some(libc::EINVAL | libc::ENOENT), NvmeofTransport::Rdma) => "; try `modprobe nvmet-rdma`",
        _ => "",
    };
    let trouble = failed.trouble;
    StepError::new(failed.step, format_args!("{setting}: {trouble}{hint}"))
        .with_errno(trouble.errno)
}

/// Takes a subsystem off a port; `false`: it was not linked.
pub(super) fn unlink(
    tree: &Tree,
    step: &'static str,
    number: u16,
    subsystem: &str,
) -> Result<bool, StepError> {
    match tree.unlink(link_at(number, subsystem)) {
        Ok(()) => {
            faults::passed(step);
            Ok(true)
        }
        Err(error) if error.is_absent() => Ok(false),
        Err(error) => Err(failed(step, error)),
    }
}
