//! The limits of connections for one peer, one address and all peers together.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_fabric::Principal;
use fabricbios_wire::{NodeId, Role};

/// The part by which operators and nodes may exceed a limit: an eighth. The role of a peer is known only after its handshake;
/// until then every peer counts as an operator.
const OPERATORS_PART: usize = 8;
/// Connections with the key of one node: those before its last crashes take a while to end.
const OF_NODE_MAX: usize = 16;

/// The limits of the control plane. The defaults are enough for a rack of clients, and protect against one bad client.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections, handshakes included. Operators may exceed this and the next limit by an eighth.
    pub connections_max: usize,
    /// Connections from one IPv4 address or one IPv6 /64. One tenant has at most half of them.
    pub connections_per_source_max: usize,
    /// Connections with certificates of one tenant.
    pub connections_per_tenant_max: usize,
    /// Connections with certificates of nodes, which may exceed the first two limits as operators may. One key has at most
    /// 16 of them.
    pub nodes_max: usize,
    /// Requests that one connection may have open. Its streams to sessions come on top.
    pub requests_per_connection_max: u32,
    /// Streams to sessions of GPUs.
    pub session_streams_max: usize,
    /// Streams to sessions of GPUs of one tenant.
    pub session_streams_per_tenant_max: usize,
    /// Streams whose worker is being connected, which may take as long as the start of the worker. One tenant has at
    /// most half of them.
    pub session_openings_max: usize,
    /// The longest time from the first packet to a verified certificate.
    pub handshake_timeout: Duration,
    /// The longest time from the opening of a stream to the end of its frame.
    pub request_timeout: Duration,
    /// The longest time that a peer may take to read an answer.
    pub answer_timeout: Duration,
    /// A connection is closed after this long without a packet. Clients send keep-alives.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            connections_per_source_max: 512,
            connections_per_tenant_max: 1_024,
            nodes_max: 64,
            requests_per_connection_max: 128,
            session_streams_max: 512,
            session_streams_per_tenant_max: 128,
            session_openings_max: 64,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
        }
    }
}

/// The reason why a connection is refused: the limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("too many connections")]
    Node,
    #[error("this address has too many connections")]
    Source,
    #[error("this tenant has too many connections")]
    Tenant,
    /// One tenant has half of the places of the address.
    #[error("this tenant has too many connections from this address: half of the address's bound")]
    TenantAtSource,
    #[error("the key of this node has too many connections")]
    NodeKey,
    /// Half of the places of the node or of the address are taken: the rest is for validated addresses
    /// (RFC 9000 §8.1), since the source of a datagram can be forged.
    #[error("the address was not validated")]
    Unvalidated,
}

/// The open connections.
#[derive(Debug)]
pub(crate) struct Admission {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    limits: Limits,
    all: usize,
    /// Connections from validated addresses.
    by_source: HashMap<IpAddr, usize>,
    /// Handshakes from addresses that are not validated, which may be forged. They take no place of `by_source`.
    unvalidated: HashMap<IpAddr, usize>,
    by_tenant: HashMap<Principal, usize>,
    by_tenant_and_source: HashMap<(Principal, IpAddr), usize>,
    by_node: HashMap<NodeId, usize>,
}

/// The place of a connection; dropping this gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    source: IpAddr,
    is_validated: bool,
    peer: Option<Principal>,
    node: Option<NodeId>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let counts = Counts {
            limits,
            ..Counts::default()
        };
        Arc::new(Self {
            counts: Mutex::new(counts),
        })
    }

    /// Takes over the limits of connections. Those that are open stay.
    pub(crate) fn change_limits(&self, limits: Limits) {
        self.counts().limits = limits;
    }

    /// A place for a connection from `address`; `is_validated`: QUIC has validated the address.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        is_validated: bool,
    ) -> Result<Place, Full> {
        let source = source_of(address);
        let mut counts = self.counts();
        if !is_validated && counts.are_half(source) {
            return Err(Full::Unvalidated);
        }
        if counts.all >= with_operators(counts.limits.connections_max) {
            return Err(Full::Node);
        }
        let max = with_operators(counts.limits.connections_per_source_max);
        if !take(counts.of_sources(is_validated), source, max) {
            return Err(Full::Source);
        }
        counts.all += 1;
        Ok(Place {
            admission: Arc::clone(self),
            source,
            is_validated,
            peer: None,
            node: None,
        })
    }

    /// The counts stay valid if a thread panics.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn of_sources(&mut self, are_validated: bool) -> &mut HashMap<IpAddr, usize> {
        match are_validated {
            true => &mut self.by_source,
            false => &mut self.unvalidated,
        }
    }

    /// Whether half of all places, or half of the places of this source, are taken.
    fn are_half(&self, source: IpAddr) -> bool {
        let limits = &self.limits;
        let of = |counts: &HashMap<IpAddr, usize>| counts.get(&source).copied().unwrap_or(0);
        let of_source = of(&self.by_source) + of(&self.unvalidated);
        self.all * 2 >= limits.connections_max || of_source * 2 >= limits.connections_per_source_max
    }
}

impl Place {
    /// Counts the connection for its peer. The handshake is over: it has validated the address and shown who the peer
    /// is.
    pub(crate) fn for_peer(&mut self, peer: &Principal, key: NodeId) -> Result<(), Full> {
        let mut counts = self.admission.counts();
        let limits = counts.limits.clone();
        let source_max = limits.connections_per_source_max;
        if !self.is_validated {
            let max = with_operators(source_max);
            if !take(&mut counts.by_source, self.source, max) {
                return Err(Full::Source);
            }
            give_back(&mut counts.unvalidated, &self.source);
            self.is_validated = true;
        }
        let is_bounded = !matches!(peer.role, Role::Operator | Role::Node);
        if is_bounded && counts.all > limits.connections_max {
            return Err(Full::Node);
        }
        if is_bounded && counts.by_source.get(&self.source) > Some(&source_max) {
            return Err(Full::Source);
        }
        let here = (peer.clone(), self.source);
        let here_max = match peer.role {
            // All nodes of a fabric have one name, and may be in one network.
            Role::Operator | Role::Node => usize::MAX,
            Role::Tenant | Role::Scheduler => source_max.div_ceil(2),
        };
        if !take(&mut counts.by_tenant_and_source, here.clone(), here_max) {
            return Err(Full::TenantAtSource);
        }
        let max = match peer.role {
            Role::Node => limits.nodes_max,
            Role::Tenant | Role::Operator | Role::Scheduler => limits.connections_per_tenant_max,
        };
        if !take(&mut counts.by_tenant, peer.clone(), max) {
            give_back(&mut counts.by_tenant_and_source, &here);
            return Err(Full::Tenant);
        }
        let is_node = peer.role == Role::Node;
        if is_node && !take(&mut counts.by_node, key, OF_NODE_MAX) {
            give_back(&mut counts.by_tenant_and_source, &here);
            give_back(&mut counts.by_tenant, peer);
            return Err(Full::NodeKey);
        }
        drop(counts);
        self.node = is_node.then_some(key);
        self.peer = Some(peer.clone());
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.admission.counts();
        counts.all -= 1;
        give_back(counts.of_sources(self.is_validated), &self.source);
        if let Some(peer) = self.peer.take() {
            give_back(&mut counts.by_tenant, &peer);
            give_back(&mut counts.by_tenant_and_source, &(peer, self.source));
        }
        if let Some(node) = self.node {
            give_back(&mut counts.by_node, &node);
        }
    }
}

/// A limit as it holds for operators: with the part beyond the limit.
fn with_operators(max: usize) -> usize {
    max + max.div_ceil(OPERATORS_PART)
}

pub(crate) fn take<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K, max: usize) -> bool {
    let count = counts.get(&key).copied().unwrap_or(0);
    if count < max {
        counts.insert(key, count + 1);
    }
    count < max
}

/// Removes keys without connections, so that the map does not grow with every address.
pub(crate) fn give_back<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// The key of an address: a host can use every address of its IPv6 /64.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(all: usize, source: usize, tenant: usize) -> Arc<Admission> {
        Admission::new(Limits {
            connections_max: all,
            connections_per_source_max: source,
            connections_per_tenant_max: tenant,
            ..Limits::default()
        })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn tenant(name: &str) -> Principal {
        Principal {
            tenant: name.into(),
            role: Role::Tenant,
        }
    }

    fn operator(name: &str) -> Principal {
        Principal {
            role: Role::Operator,
            ..tenant(name)
        }
    }

    /// A connection from a validated address whose handshake is over.
    fn join(admission: &Arc<Admission>, from: &str, peer: &Principal) -> Result<Place, Full> {
        let mut place = admission.admit(ip(from), true)?;
        place.for_peer(peer, NodeId([1; 32])).map(|()| place)
    }

    #[test]
    fn each_bound_holds_and_places_come_back() {
        let admission = admission(4, 2, 2);
        let (blue, red) = (tenant("blue"), tenant("red"));
        let mut all = vec![join(&admission, "10.0.0.1", &blue).unwrap()];
        all.push(join(&admission, "::ffff:10.0.0.1", &red).unwrap());
        let third = join(&admission, "10.0.0.1", &tenant("green"));
        assert_eq!(third.unwrap_err(), Full::Source);
        all.push(join(&admission, "10.0.0.2", &blue).unwrap());
        let third = join(&admission, "10.0.0.3", &blue);
        assert_eq!(third.unwrap_err(), Full::Tenant);
        all.push(join(&admission, "10.0.0.3", &red).unwrap());
        let fifth = join(&admission, "10.0.0.4", &tenant("green"));
        assert_eq!(fifth.unwrap_err(), Full::Node);
        drop(all);
        let counts = admission.counts();
        assert_eq!(counts.all, 0);
        assert!(counts.by_source.is_empty() && counts.by_tenant.is_empty());
        assert!(counts.by_tenant_and_source.is_empty());
    }

    #[test]
    fn connections_above_a_new_bound_stay_and_no_more_come() {
        let admission = admission(9, 9, 9);
        let join = || join(&admission, "10.0.0.1", &tenant("blue"));
        let mut open: Vec<Place> = (0..4).map(|_| join().unwrap()).collect();
        admission.change_limits(Limits {
            connections_per_tenant_max: 2,
            ..Limits::default()
        });
        assert_eq!(join().unwrap_err(), Full::Tenant);
        open.truncate(1);
        open.push(join().unwrap());
        assert_eq!(join().unwrap_err(), Full::Tenant);
        drop(open);
        assert_eq!(admission.counts().all, 0);
    }

    #[test]
    fn one_node_leaves_the_places_of_nodes_to_the_others() {
        let admission = Admission::new(Limits {
            nodes_max: 20,
            ..Limits::default()
        });
        let node = Principal {
            role: Role::Node,
            ..tenant("node")
        };
        let join = |key| {
            let mut place = admission.admit(ip("10.0.0.1"), true)?;
            place.for_peer(&node, NodeId([key; 32])).map(|()| place)
        };
        let loud: Vec<Place> = (0..OF_NODE_MAX).map(|_| join(1).unwrap()).collect();
        assert_eq!(join(1).unwrap_err(), Full::NodeKey);
        let quiet = join(2).unwrap();
        drop(loud);
        join(1).unwrap();
        drop(quiet);
        assert!(admission.counts().by_node.is_empty());
    }

    #[test]
    fn a_tenant_leaves_half_of_an_address_to_the_others() {
        let admission = admission(100, 8, 100);
        let join = |from, name| join(&admission, from, &tenant(name));
        let loud: Vec<Place> = (0..4).map(|_| join("10.0.0.1", "loud").unwrap()).collect();
        assert_eq!(join("10.0.0.1", "loud").unwrap_err(), Full::TenantAtSource);
        let _quiet: Vec<Place> = (0..4).map(|_| join("10.0.0.1", "quiet").unwrap()).collect();
        join("10.0.0.2", "loud").unwrap();
        drop(loud);
        join("10.0.0.1", "loud").unwrap();
    }

    #[test]
    fn operators_get_in_where_tenants_fill_the_address_or_the_node() {
        for (all, source) in [(100, 8), (8, 100)] {
            let admission = admission(all, source, 4);
            let join = |peer: &Principal| join(&admission, "10.0.0.1", peer);
            let full = ["a", "b"].map(|name| [(); 4].map(|()| join(&tenant(name)).unwrap()));
            join(&tenant("c")).unwrap_err();
            // An operator with the name of a tenant does not count in the tenant's limits.
            let one = join(&operator("a")).unwrap();
            join(&operator("a")).unwrap_err();
            drop(full);
            let [_two, _three] = [(); 2].map(|()| join(&operator("a")).unwrap());
            drop(one);
        }
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_source() {
        let admission = admission(9, 1, 1);
        let join = |from, name| join(&admission, from, &tenant(name));
        let _place = join("2001:db8::1", "blue").unwrap();
        assert_eq!(join("2001:db8::2", "red").unwrap_err(), Full::Source);
        join("2001:db8:0:1::1", "red").unwrap();
    }

    #[test]
    fn forged_handshakes_take_no_place_of_whom_they_name() {
        let admission = admission(100, 4, 100);
        let begin = |validated| admission.admit(ip("10.0.0.1"), validated);
        let forged = [begin(false).unwrap(), begin(false).unwrap()];
        assert_eq!(begin(false).unwrap_err(), Full::Unvalidated);
        let mut real: Vec<Place> = (0..5).map(|_| begin(true).unwrap()).collect();
        assert_eq!(begin(true).unwrap_err(), Full::Source);
        admission.admit(ip("10.0.0.2"), false).unwrap();
        real.pop();
        let [mut first, mut second] = forged;
        first.for_peer(&operator("one"), NodeId([1; 32])).unwrap();
        let full = second.for_peer(&operator("two"), NodeId([1; 32]));
        assert_eq!(full.unwrap_err(), Full::Source);
        drop((first, second, real));
        let counts = admission.counts();
        assert!(counts.by_source.is_empty() && counts.unvalidated.is_empty());
        assert_eq!(counts.all, 0);
    }

    #[test]
    fn a_half_full_node_wants_addresses_validated() {
        let admission = admission(4, 4, 4);
        let all = ["10.0.0.1", "10.0.0.2"].map(|it| admission.admit(ip(it), false).unwrap());
        let third = |validated| admission.admit(ip("10.0.0.3"), validated);
        assert_eq!(third(false).unwrap_err(), Full::Unvalidated);
        third(true).unwrap();
        drop(all);
        third(false).unwrap();
    }
}
