//! How users of this machine use leases of their tenants: only a local user can give a process or a network namespace.

use std::{fmt, io, os::fd::OwnedFd, time::Duration};

use fabricbios_lease::{Lookup, StepError};
use fabricbios_wire::{LeaseId, Refusal};
use serde::{Deserialize, Serialize};

/// A path whose leases are used on the node itself.
pub trait LocalAccess: Send + Sync + 'static {
    /// Moves what the caller gives into the lease: a process into the lease's cores, or the lease's interface into a
    /// network namespace. Checks that the path has the lease, the caller ([`Caller::check`]) and that the lease is
    /// open, and then moves it ([`Entry::admit`](crate::Entry::admit)). Nothing enters after a cut. An entry that was
    /// under way as the cut began is ended before the proof. May block, and comes from several threads at once.
    ///
    /// # Errors
    /// Nothing was moved, or it was moved back. The detail of [`LocalRefusal::Failed`] says what is left.
    fn enter(&self, lease: LeaseId, caller: &Caller, given: Given)
    -> Result<Entered, LocalRefusal>;

    /// The time until the end of access, for a lease that takes processes. Checks the lease and the caller as
    /// [`LocalAccess::enter`] does. Never waits.
    ///
    /// # Errors
    /// [`LocalRefusal::NotFound`]: the path has no such lease, or its leases take no processes. Otherwise those of
    /// `enter`.
    fn remaining(&self, _lease: LeaseId, _caller: &Caller) -> Result<Duration, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    /// Connects the caller to the worker that serves the lease's session, and returns a stream socket on which the
    /// caller then opens the session. `session`: the number that the caller will ask for; 0: the session of the lease,
    /// which is started if there is none. Checks the lease and the caller as [`LocalAccess::enter`] does. May block,
    /// and comes from several threads at once.
    ///
    /// # Errors
    /// There is no connection. [`LocalRefusal::Unsupported`]: no lease of this kind has sessions; the caller gets this
    /// error only if no path of another kind has the lease.
    fn session(
        &self,
        _lease: LeaseId,
        _caller: &Caller,
        _session: u64,
    ) -> Result<OwnedFd, LocalRefusal> {
        Err(LocalRefusal::Unsupported(
            "only leases of a GPU have sessions".to_owned(),
        ))
    }
}

/// A process of this machine that sends a request. The kernel reports its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id of the process.
    pub uid: u32,
    /// The process id in the daemon's PID namespace.
    pub pid: i32,
    /// The tenants of that user, as configured by the operator.
    pub tenants: Vec<String>,
    /// The user is root of this machine, and may do everything that the tenant of a lease may do.
    pub is_root: bool,
}

impl Caller {
    /// Refuses a lease of a tenant to which the caller does not belong.
    ///
    /// # Errors
    /// [`LocalRefusal::NotYours`].
    pub fn check(&self, tenant: &str) -> Result<(), LocalRefusal> {
        if self.is_root || self.tenants.iter().any(|it| it == tenant) {
            return Ok(());
        }
        Err(LocalRefusal::NotYours {
            uid: self.uid,
            tenant: tenant.to_owned(),
        })
    }
}

/// What a caller gives.
#[derive(Debug)]
pub enum Given {
    /// A pidfd of the caller itself.
    Process(OwnedFd),
    /// A descriptor that the caller sends as one of a network namespace; the path checks that.
    NetworkNamespace(OwnedFd),
}

impl Given {
    /// The same process or namespace, by another descriptor.
    ///
    /// # Errors
    /// This process has no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Process(it) => it.try_clone().map(Self::Process),
            Self::NetworkNamespace(it) => it.try_clone().map(Self::NetworkNamespace),
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process(_) => "process",
            Self::NetworkNamespace(_) => "network namespace",
        })
    }
}

/// The result of an entry: the process or interface is in the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// The cgroup or interface, for people.
    pub place: String,
    /// Variables that programs in the lease need, such as the device that they may use.
    pub environment: Vec<(String, String)>,
}

impl Entered {
    /// Entered at this place, without variables.
    #[must_use]
    pub fn at(place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            environment: Vec::new(),
        }
    }
}

/// Why nothing has entered the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalRefusal {
    /// The path has no such lease.
    NotFound,
    /// The lease is of a tenant to which the caller's user does not belong.
    NotYours {
        /// The user id.
        uid: u32,
        /// The tenant of the lease.
        tenant: String,
    },
    /// Leases of this kind, or this lease, take nothing of that sort. The text says what was given and why, for people.
    Unsupported(String),
    /// The lease is not open: not bound yet, or over. The text says which, for people.
    NotActive(String),
    /// A step failed, by a fault of the node or of the given process or namespace.
    Failed(StepError),
    /// The session was not reached. The refusal is as over the network, with the names of its status and class.
    Session {
        /// The name of the status.
        error: String,
        /// The name of the class.
        class: String,
        /// What failed and what to do.
        message: String,
    },
}

impl From<Refusal> for LocalRefusal {
    /// The refusal of a session.
    fn from(refusal: Refusal) -> Self {
        Self::Session {
            error: refusal.error.name().to_owned(),
            class: refusal.class.name().to_owned(),
            message: refusal.message,
        }
    }
}

impl LocalRefusal {
    /// The entry of a path for the lease, or the refusal without one.
    ///
    /// # Errors
    /// The lease is over, or the path does not know it.
    pub fn unless_here<T>(found: Lookup<T>) -> Result<T, Self> {
        match found {
            Lookup::Here(entry) => Ok(entry),
            Lookup::Released => Err(Self::NotActive("it is over".to_owned())),
            Lookup::Unknown => Err(Self::NotFound),
        }
    }
}

impl fmt::Display for LocalRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("this node has no such lease"),
            Self::NotYours { uid, tenant } => write!(
                f,
                "the lease is of tenant {tenant}, and uid {uid} is no uid of it; the operator of the node adds it with \
                 --tenant-uid {tenant}={uid}"
            ),
            Self::Unsupported(why) => f.write_str(why),
            Self::Session { message, .. } => f.write_str(message),
            Self::NotActive(state) => write!(f, "the lease is not active: {state}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LocalRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenants: &[&str], is_root: bool) -> Caller {
        Caller {
            uid: 1000,
            pid: 1,
            tenants: tenants.iter().map(ToString::to_string).collect(),
            is_root,
        }
    }

    #[test]
    fn a_user_reaches_the_leases_of_its_tenants_and_root_all() {
        caller(&["blue", "red"], false).check("red").unwrap();
        caller(&[], true).check("red").unwrap();
        for tenants in [&[][..], &["blue", "re", "red2"]] {
            let refused = caller(tenants, false).check("red").unwrap_err().to_string();
            assert!(refused.ends_with("--tenant-uid red=1000"), "{refused}");
        }
    }
}
