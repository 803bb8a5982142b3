//! Which roads there are, and which come into question for a lease.

use std::{fmt, time::Duration};

use fabricbios_wire::Transport;

use crate::{Error, shared::Shared};

/// How bytes travel between a lease and its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Road {
    /// The network card moves them by itself.
    Rdma,
    /// Authenticated datagrams (FBMU).
    Udp,
}

impl Road {
    /// `rdma` or `udp`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Road {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How transfers of a lease go. By default RDMA where the lease has it and this machine can, else
/// UDP; a lease that is connected to a queue pair of another program's is left connected to it as
/// long as there is another road.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    pub(super) road: Option<Road>,
    pub(super) payload_mac: bool,
    pub(super) give_up: Option<Duration>,
}

impl Transfers {
    /// Over this road and no other. RDMA connects the lease to a queue pair of the SDK's, whatever
    /// it was connected to before.
    #[must_use]
    pub fn road(mut self, road: Road) -> Self {
        self.road = Some(road);
        self
    }

    /// Over UDP: authenticate every byte and not only the requests. Against somebody who changes
    /// datagrams on their way; costs a hash over every byte.
    #[must_use]
    pub fn payload_mac(mut self, yes: bool) -> Self {
        self.payload_mac = yes;
        self
    }

    /// Over UDP: a call ends when nothing of it was done for this long; 30 seconds unless told
    /// otherwise.
    #[must_use]
    pub fn give_up(mut self, after: Duration) -> Self {
        self.give_up = Some(after);
        self
    }
}

/// The roads to try, best first; at least one.
pub(super) fn candidates(shared: &Shared) -> Result<Vec<Road>, Error> {
    let info = shared.info();
    let (binding, transport) = (info.binding, info.effective.transport);
    let both = transport == Some(Transport::Both);
    let over_udp = both || binding.dp_key.is_some() || transport == Some(Transport::Udp);
    let over_rdma = both || binding.rdma.is_some() || transport == Some(Transport::Rdma);
    let lease_id = shared.lease_id;
    if let Some(road) = shared.transfers().road {
        let has = match road {
            Road::Rdma => over_rdma,
            Road::Udp => over_udp,
        };
        let why = || format!("lease {lease_id} is not reached over {road}; ask for one that is");
        return has.then(|| vec![road]).ok_or_else(|| Error::Usage(why()));
    }
    let is_taken = binding.rdma.is_some_and(|rdma| rdma.rkey.is_some());
    let rdma = over_rdma && !shared.is_callers() && !(is_taken && over_udp);
    let roads = [(rdma, Road::Rdma), (over_udp, Road::Udp)];
    let roads: Vec<_> = roads
        .into_iter()
        .filter_map(|(has, road)| has.then_some(road))
        .collect();
    match (roads.is_empty(), over_rdma) {
        (false, _) => Ok(roads),
        (true, true) => Err(Error::Usage(format!(
            "lease {lease_id} is connected to queue pairs of the caller's: use these"
        ))),
        (true, false) => Err(Error::Usage(format!(
            "the node told no coordinates of lease {lease_id}'s memory: it is another tenant's, or \
             it lost its key and LEASE_BIND gives it a new one"
        ))),
    }
}
