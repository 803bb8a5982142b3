//! The ports that all leases share: found again or made, kept listening by the anchor, given back.
//!
//! A port listens while a subsystem is linked to it. The anchor has no namespace and lets nobody in, and is
//! linked as long as the node runs; so an address is taken at start, and an unlink of the last lease does not stop
//! the port.

use std::{
    net::{IpAddr, SocketAddr},
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
use sha2::{Digest, Sha256};

use super::{
    PortSetting, faults,
    names::{link_at, port_at},
    plan,
    run::{Failed, Run},
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

/// A port as it is in configfs, whosever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) number: u16,
    /// `addr_trtype`, `addr_adrfam`, `addr_traddr`, `addr_trsvcid`.
    attributes: [String; 4],
    pub(super) subsystems: Vec<String>,
}

impl Seen {
    /// Where it listens, if it is for TCP.
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        let [kind, _, address, service] = &self.attributes;
        let address: IpAddr = address.parse().ok()?;
        let service = service.parse().ok()?;
        (kind == "tcp").then(|| SocketAddr::new(address, service))
    }

    fn is_at(&self, setting: PortSetting) -> bool {
        let [kind, _, address, service] = &self.attributes;
        let [wanted_kind, _, _, wanted_service] = setting.attributes();
        let same_ip = address.parse() == Ok(setting.address.ip());
        (kind, service) == (&wanted_kind, &wanted_service) && same_ip
    }

    /// Its maker died in between, or is at it.
    fn is_unfinished(&self) -> bool {
        self.subsystems.is_empty() && self.attributes[2..].iter().any(String::is_empty)
    }
}

/// Every port of the kernel's target.
pub(super) fn survey(tree: &Tree) -> Result<Vec<Seen>, StepError> {
    let failed = |error| StepError::new("look at ports", error);
    let numbers = tree.list("ports").map_err(failed)?;
    let numbers = numbers.iter().filter_map(|name| name.parse().ok());
    numbers
        .map(|number| look(tree, number).map_err(failed))
        .collect()
}

fn look(tree: &Tree, number: u16) -> Result<Seen, fabricbios_kernfs::Error> {
    let base = port_at(number);
    let read = |name: &str| tree.read(format!("{base}/{name}"));
    Ok(Seen {
        number,
        attributes: [
            read("addr_trtype")?,
            read("addr_adrfam")?,
            read("addr_traddr")?,
            read("addr_trsvcid")?,
        ],
        subsystems: tree.list(format!("{base}/subsystems"))?,
    })
}

/// The number under which an address is looked for first. It depends on nothing but the names, so that a
/// half-made port is found again.
fn first_number(anchor: &str, setting: PortSetting) -> u16 {
    let mut hash = Sha256::new_with_prefix(anchor);
    setting.attributes().iter().for_each(|text| {
        hash.update(text);
        hash.update([0]);
    });
    let digest = hash.finalize();
    u16::from_be_bytes([digest[0], digest[1]]).max(1)
}

/// Which number the port has, or gets. `Err`: the address is another's.
fn choose(seen: &[Seen], anchor: &str, setting: PortSetting) -> Result<u16, String> {
    let first = first_number(anchor, setting);
    let is_free = |number: u16| match seen.iter().find(|port| port.number == number) {
        None => true,
        Some(port) => number == first && port.is_unfinished(),
    };
    match seen.iter().find(|port| port.is_at(setting)) {
        Some(port) if port.subsystems.iter().any(|name| name == anchor) => Ok(port.number),
        Some(port) if port.subsystems.is_empty() && port.number == first => Ok(port.number),
        Some(port) => Err(format!(
            "ports/{} of the kernel's target has that address and is not this node's; linked to it: [{}]",
            port.number,
            port.subsystems.join(", ")
        )),
        None => (first..=u16::MAX)
            .chain(1..first)
            .find(|number| is_free(*number))
            .ok_or_else(|| "the kernel's target has no number left".to_owned()),
    }
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
        removed.map_err(|error| StepError::new("remove anchor", error))
    }

    fn give_back(&self, seen: &Seen) -> Result<(), StepError> {
        let failed = |error| StepError::new("give back port", error);
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
        Err(error) => Err(StepError::new(step, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANCHOR: &str = "nqn.2026-11.org.fabricbios:0011223344556677:anchor";

    fn setting(address: &str) -> PortSetting {
        PortSetting {
            transport: NvmeofTransport::Tcp,
            address: address.parse().unwrap(),
        }
    }

    fn seen(number: u16, setting: PortSetting, subsystems: &[&str]) -> Seen {
        Seen {
            number,
            attributes: setting.attributes(),
            subsystems: subsystems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn our_port_is_found_again_whatever_its_number() {
        let wanted = setting("[fd00::1]:4420");
        let mut port = seen(7, wanted, &[ANCHOR, "nqn.2020-01.org:lease"]);
        port.attributes[2] = "fd00:0:0:0:0:0:0:1".to_owned();
        assert_eq!(choose(&[port], ANCHOR, wanted), Ok(7));
    }

    #[test]
    fn a_port_of_somebody_else_is_named_and_left_alone() {
        let wanted = setting("10.0.0.1:4420");
        let other = seen(3, wanted, &["nqn.2020-01.org:other"]);
        let error = choose(&[other], ANCHOR, wanted).unwrap_err();
        assert!(
            error.contains("ports/3") && error.contains("nqn.2020-01.org:other"),
            "{error}"
        );
        let empty = seen(3, wanted, &[]);
        assert!(choose(&[empty], ANCHOR, wanted).is_err());
    }

    #[test]
    fn a_new_port_takes_a_free_number_and_finishes_what_was_begun() {
        let wanted = setting("10.0.0.1:4420");
        let first = choose(&[], ANCHOR, wanted).unwrap();
        let taken = seen(first, setting("10.0.0.2:4420"), &[]);
        assert_ne!(choose(&[taken], ANCHOR, wanted), Ok(first));
        for begun in 2..4 {
            let mut half = seen(first, wanted, &[]);
            half.attributes[begun..].iter_mut().for_each(String::clear);
            assert_eq!(choose(&[half], ANCHOR, wanted), Ok(first));
        }
        assert_eq!(
            choose(&[seen(first, wanted, &[])], ANCHOR, wanted),
            Ok(first)
        );
    }
}
