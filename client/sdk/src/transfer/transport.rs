//! The transports of transfers, and the choice among them for a lease.

use std::{fmt, time::Duration};

use fabricbios_wire::Transport;

use crate::{Error, shared::SharedLease};

/// The transport of the bytes between a lease and its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataTransport {
    /// RDMA.
    Rdma,
    /// Authenticated datagrams (FBMU).
    Udp,
}

impl DataTransport {
    /// `rdma` or `udp`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for DataTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Options of the transfers of a lease. The default transport is RDMA if the lease has it and this machine can use it,
/// else UDP; a lease that is connected to a queue pair of another program stays connected to it as long as there is
/// another transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    pub(super) transport: Option<DataTransport>,
    pub(super) payload_mac: bool,
    pub(super) give_up: Option<Duration>,
}

impl Transfers {
    /// Uses only this transport. RDMA connects the lease to a queue pair of the SDK, even if the lease is connected to
    /// another one.
    #[must_use]
    pub fn transport(mut self, transport: DataTransport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Over UDP: authenticates every byte and not only the requests, against an attacker who changes datagrams in the
    /// network. This costs a hash over every byte.
    #[must_use]
    pub fn payload_mac(mut self, yes: bool) -> Self {
        self.payload_mac = yes;
        self
    }

    /// Over UDP: a call fails after this long without progress; 30 seconds by default. If the node's machine answers that
    /// nothing listens at the port, the call fails as soon as the patience of the lease is over ([`crate::Lease::set_patience`]).
    #[must_use]
    pub fn give_up(mut self, after: Duration) -> Self {
        self.give_up = Some(after);
        self
    }
}

/// The transports to try, the best first; at least one.
pub(super) fn candidates(shared: &SharedLease) -> Result<Vec<DataTransport>, Error> {
    let info = shared.info();
    let (binding, granted) = (info.binding, info.effective.transport);
    let both = granted == Some(Transport::Both);
    let over_udp = both || binding.dp_key.is_some() || granted == Some(Transport::Udp);
    let over_rdma = both || binding.rdma().is_some() || granted == Some(Transport::Rdma);
    let lease_id = shared.lease_id;
    if let Some(transport) = shared.transfers().transport {
        let has = match transport {
            DataTransport::Rdma => over_rdma,
            DataTransport::Udp => over_udp,
        };
        let why =
            || format!("lease {lease_id} is not reached over {transport}; ask for a lease that is");
        return has
            .then(|| vec![transport])
            .ok_or_else(|| Error::Usage(why()));
    }
    let is_taken = binding.rdma().is_some_and(|rdma| rdma.rkey.is_some());
    let rdma = over_rdma && !shared.has_callers_peers() && !(is_taken && over_udp);
    let transports = [(rdma, DataTransport::Rdma), (over_udp, DataTransport::Udp)];
    let transports: Vec<_> = transports
        .into_iter()
        .filter_map(|(has, transport)| has.then_some(transport))
        .collect();
    match (transports.is_empty(), over_rdma) {
        (false, _) => Ok(transports),
        (true, true) => Err(Error::Usage(format!(
            "lease {lease_id} is connected to queue pairs of the caller's: use these"
        ))),
        (true, false) => Err(Error::Usage(format!(
            "the node gave no coordinates of lease {lease_id}'s memory: the lease is another tenant's, or \
             has lost its key and gets a new one with LEASE_BIND"
        ))),
    }
}
