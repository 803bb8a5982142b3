//! What the users of this machine do with leases of their tenants: only they can give a process or a namespace.

use std::{fmt, io, os::fd::OwnedFd, time::Duration};

use fabricbios_lease::{Lookup, StepError};
use fabricbios_wire::{LeaseId, Refusal};
use serde::{Deserialize, Serialize};

/// A path whose leases are used on the node itself.
pub trait LocalAccess: Send + Sync + 'static {
    /// Puts what the caller gives into the lease: a process into its cores, its interface into a network namespace.
    /// Knows the lease, checks the caller ([`Caller::check`]) and that the lease is open, and then moves what is given
    /// ([`Entry::admit`](crate::Entry::admit)). Nothing enters after a cut; what was entering as it began is ended
    /// before the proof. May block, and comes from several threads at once.
    ///
    /// # Errors
    /// Nothing was moved, or it was moved back; after [`LocalRefusal::Failed`] the detail says what is left.
    fn enter(&self, lease: LeaseId, caller: &Caller, given: Given)
    -> Result<Entered, LocalRefusal>;

    /// The time until access to a lease ends that takes processes. Knows the lease and checks the caller as
    /// [`LocalAccess::enter`] does, and waits for nothing.
    ///
    /// # Errors
    /// [`LocalRefusal::NotFound`]: the path has no such lease, or its leases take no processes. Else as `enter`.
    fn remaining(&self, _lease: LeaseId, _caller: &Caller) -> Result<Duration, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    /// Connects the caller to the worker that serves the lease's session: a stream socket, on which the caller then opens
    /// the session. The number `session` is the one that it will ask for; 0: the lease's, which is started if there is
    /// none. Knows the lease and checks the caller as [`LocalAccess::enter`] does. May block, and comes from several
    /// threads at once.
    ///
    /// # Errors
    /// There is no connection. [`LocalRefusal::Unsupported`] says that no lease of this kind has sessions, and is told only
    /// if no other kind knows what it is asked for.
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

/// A process of this machine that asks, as the kernel tells who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its number in the daemon's PID namespace.
    pub pid: i32,
    /// The tenants of that user, as the operator has set them.
    pub tenants: Vec<String>,
    /// The user is root of this machine, and may do with any lease what its tenant may do.
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
    /// A descriptor that is said to be of a network namespace; the path checks that.
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

/// What was given is in the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entered {
    /// Where, for people: a cgroup, an interface.
    pub place: String,
    /// Variables that programs in the lease need, such as the device that they may use.
    pub environment: Vec<(String, String)>,
}

impl Entered {
    /// In this place, without variables.
    #[must_use]
    pub fn at(place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            environment: Vec::new(),
        }
    }
}

/// Nothing has entered the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalRefusal {
    /// The path has no such lease.
    NotFound,
    /// The lease is of a tenant to which the caller's user does not belong.
    NotYours {
        /// The user.
        uid: u32,
        /// The tenant that has the lease.
        tenant: String,
    },
    /// Leases of the kind, or this one, take nothing of that sort. What was given and why, for people.
    Unsupported(String),
    /// The lease is not open: not bound yet, or over. The state, for people.
    NotActive(String),
    /// A step failed, by the fault of the node or of what was given.
    Failed(StepError),
    /// The session was not reached: a refusal as over the network, with the names of its status and class.
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
    /// What a path has of the lease.
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
