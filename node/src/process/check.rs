//! `check`: reports what a start with these settings would refuse, what the machine lacks for it, and what it would
//! warn of. It makes the calls that a start makes before its first change, and changes nothing.

use std::{
    fmt, iter,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::SystemTime,
};

use fabricbios_fabric::PortTls;
use fabricbios_wire::NodeId;
use nix::ifaddrs::getifaddrs;

use crate::{
    inventory::detection::lack_of_room,
    journal::{self, Journal, JournalError, Recovered, past::refuse_lost_node},
    kinds::{KINDS, local_socket, settings::KindSettings},
    process::{membership, state_dir},
    settings::Settings,
};

/// The arguments of [`crate::kinds::Kind::check`].
#[derive(Debug)]
pub struct Checking<'a> {
    /// The operator's settings.
    pub settings: &'a KindSettings,
    /// The node. Before the first start it is a node that does not exist.
    pub node_id: NodeId,
    /// A daemon runs on the state directory: its ports and devices are free only after its end.
    pub has_daemon: bool,
    /// The journal of earlier runs. `Err`: why it cannot be read now.
    pub past: Result<Recovered, PastUnknown>,
    /// The addresses of this machine's interfaces; `None`: they cannot be read.
    pub own: Option<Vec<IpAddr>>,
}

/// Why a check does not know the leases of earlier runs.
#[derive(Debug, thiserror::Error)]
pub enum PastUnknown {
    /// A daemon runs.
    #[error("a daemon writes to it")]
    InUse,
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Checking<'_> {
    /// False if no interface has this address now.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        let is_own = |own: &Vec<IpAddr>| own.contains(&ip);
        ip.is_unspecified() || ip.is_loopback() || self.own.as_ref().is_none_or(is_own)
    }
}

/// What a check has found.
#[derive(Debug, Default)]
pub struct Findings(Vec<(Weight, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Refused,
    Lacks,
    Withheld,
    Warning,
}

impl Findings {
    /// A start refuses this.
    pub fn refused(&mut self, why: impl fmt::Display) {
        self.0.push((Weight::Refused, why.to_string()));
    }

    /// A start fails because the machine or the user lacks this.
    pub fn lacks(&mut self, what: impl fmt::Display) {
        self.0.push((Weight::Lacks, what.to_string()));
    }

    /// A start goes on without this.
    pub fn withheld(&mut self, what: impl fmt::Display) {
        self.0.push((Weight::Withheld, what.to_string()));
    }

    /// A start logs this, and goes on.
    pub fn warns(&mut self, of: impl fmt::Display) {
        self.0.push((Weight::Warning, of.to_string()));
    }

    /// [`Findings::refused`], with the error of a step of the start.
    pub fn refused_if<T>(&mut self, step: anyhow::Result<T>) -> Option<T> {
        step.map_err(|error| self.refused(format_args!("{error:#}")))
            .ok()
    }

    /// [`Findings::lacks`], with the error of a step of the start.
    pub fn lacks_if<T>(&mut self, step: anyhow::Result<T>) -> Option<T> {
        step.map_err(|error| self.lacks(format_args!("{error:#}")))
            .ok()
    }

    /// True if a start would fail.
    #[must_use]
    pub fn stop_a_start(&self) -> bool {
        let stops = |weight| matches!(weight, Weight::Refused | Weight::Lacks);
        self.0.iter().any(|(weight, _)| stops(*weight))
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (weight, text) in &self.0 {
            let word = match weight {
                Weight::Refused => "refused",
                Weight::Lacks => "lacks",
                Weight::Withheld => "withheld",
                Weight::Warning => "warning",
            };
            writeln!(f, "{word}: {text}")?;
        }
        match self.stop_a_start() {
            true => writeln!(f, "a start with these settings would fail"),
            false => writeln!(f, "nothing was found that would make a start fail"),
        }
    }
}

/// Checks the settings on this machine.
#[must_use]
pub fn check(settings: &Settings) -> Findings {
    let mut found = Findings::default();
    let state_dir = settings.state_dir();
    let has_daemon = found.refused_if(state_dir::look(state_dir)) == Some(true);
    if has_daemon {
        found.warns(format_args!(
            "a daemon runs on the state directory {}: these settings hold when it is restarted",
            state_dir.display()
        ));
    }
    // A start writes down that it is one.
    if let Some(why) = lack_of_room(state_dir::existing(state_dir)) {
        found.lacks(format_args!("{why}: make room for the journal"));
    }
    let node = membership::check(settings, &mut found);
    let past = past(state_dir, has_daemon, &mut found);
    let checking = Checking {
        settings: &settings.kinds,
        node_id: found.refused_if(node).flatten().unwrap_or(NodeId([0; 32])),
        has_daemon,
        past,
        own: getifaddrs()
            .ok()
            .map(|all| all.filter_map(|it| ip_of(it.address?)).collect()),
    };
    addresses(settings, &checking, &mut found);
    if let Some(path) = &settings.metrics_identity {
        let read = PortTls::read(path, SystemTime::now());
        read.map_or_else(
            |error| {
                found.withheld(format_args!(
                    "--metrics-identity: {error}: no pages are served"
                ));
            },
            drop,
        );
    }
    for kind in KINDS {
        (kind.check)(&checking, &mut found);
    }
    local_socket::check(&settings.kinds.shared, &mut found);
    found
}

/// The journal, if its process has closed it. Like a start, refuses a journal that it cannot repair, and records
/// without the identity of their node.
fn past(
    state_dir: &Path,
    has_daemon: bool,
    found: &mut Findings,
) -> Result<Recovered, PastUnknown> {
    if has_daemon {
        return Err(PastUnknown::InUse);
    }
    let past = Journal::look(&state_dir.join(journal::FILE)).map(Option::unwrap_or_default);
    let past = past.inspect_err(|error| {
        if !matches!(error, JournalError::NeedsRepair { .. }) {
            found.refused(error);
        }
    })?;
    found.refused_if(refuse_lost_node(state_dir, &past));
    Ok(past)
}

/// Reports an address that no interface has: a socket cannot be bound to it.
fn addresses(settings: &Settings, checking: &Checking<'_>, found: &mut Findings) {
    let listen = ("listen", settings.listen());
    for (name, address) in iter::once(listen).chain(settings.kinds.datagrams()) {
        if !checking.has_address(address.ip()) {
            found.lacks(format_args!(
                "--{name} {address}: no interface has this address"
            ));
        }
    }
}

fn ip_of(address: nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = address
        .as_sockaddr_in()
        .map(|it| SocketAddr::from((it.ip(), 0)));
    let v6 = address
        .as_sockaddr_in6()
        .map(|it| SocketAddr::from((it.ip(), 0)));
    v4.or(v6).map(|it| it.ip())
}
