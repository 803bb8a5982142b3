//! How much of the node one peer, one address or everybody together may take up.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Bounds of the control plane. The defaults let a rack of clients work and one client not hurt.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections, handshakes included.
    pub connections_max: usize,
    /// Of those from one IPv4 address or one IPv6 /64.
    pub connections_per_source_max: usize,
    /// Of those with certificates of one tenant.
    pub connections_per_tenant_max: usize,
    /// Requests that one connection may have open.
    pub requests_per_connection_max: u32,
    /// From the first packet to a verified certificate.
    pub handshake_timeout: Duration,
    /// From the opening of a stream to the end of its frame.
    pub request_timeout: Duration,
    /// Silence after which a connection is gone. Clients keep theirs alive.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            connections_per_source_max: 512,
            connections_per_tenant_max: 1_024,
            requests_per_connection_max: 128,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
        }
    }
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Node,
    Source,
    Tenant,
    /// Half of the places of the node or of the address are taken: from here on only for an address that was
    /// validated (RFC 9000 §8.1), since the source of a datagram can be forged.
    Unvalidated,
}

/// Who is connected.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Connections from validated addresses.
    by_source: HashMap<IpAddr, usize>,
    /// Handshakes that anybody can have begun in the name of that address. They take no place of the others.
    unvalidated: HashMap<IpAddr, usize>,
    by_tenant: HashMap<String, usize>,
}

/// A connection's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    source: IpAddr,
    is_validated: bool,
    tenant: Option<String>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            counts: Mutex::default(),
        })
    }

    /// A place for a connection from `address`, which QUIC has validated or not.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        is_validated: bool,
    ) -> Result<Place, Full> {
        let source = source_of(address);
        let mut counts = self.counts();
        if !is_validated && counts.are_half(&self.limits, source) {
            return Err(Full::Unvalidated);
        }
        if counts.all >= self.limits.connections_max {
            return Err(Full::Node);
        }
        let max = self.limits.connections_per_source_max;
        if !take(counts.of_sources(is_validated), source, max) {
            return Err(Full::Source);
        }
        counts.all += 1;
        Ok(Place {
            admission: Arc::clone(self),
            source,
            is_validated,
            tenant: None,
        })
    }

    /// A thread that panicked while counting has left counts that are still counts.
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

    /// Whether half of all places, or of those of this source, are taken.
    fn are_half(&self, limits: &Limits, source: IpAddr) -> bool {
        let of = |counts: &HashMap<IpAddr, usize>| counts.get(&source).copied().unwrap_or(0);
        let of_source = of(&self.by_source) + of(&self.unvalidated);
        self.all * 2 >= limits.connections_max || of_source * 2 >= limits.connections_per_source_max
    }
}

impl Place {
    /// The handshake is over, which validates the address too.
    pub(crate) fn validated(&mut self) -> Result<(), Full> {
        let max = self.admission.limits.connections_per_source_max;
        let mut counts = self.admission.counts();
        if !self.is_validated {
            if !take(&mut counts.by_source, self.source, max) {
                return Err(Full::Source);
            }
            give_back(&mut counts.unvalidated, &self.source);
            self.is_validated = true;
        }
        Ok(())
    }

    /// Counts the connection for `tenant` too.
    pub(crate) fn for_tenant(&mut self, tenant: &str) -> Result<(), Full> {
        let max = self.admission.limits.connections_per_tenant_max;
        if !take(
            &mut self.admission.counts().by_tenant,
            tenant.to_owned(),
            max,
        ) {
            return Err(Full::Tenant);
        }
        self.tenant = Some(tenant.to_owned());
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.admission.counts();
        counts.all -= 1;
        give_back(counts.of_sources(self.is_validated), &self.source);
        if let Some(tenant) = &self.tenant {
            give_back(&mut counts.by_tenant, tenant);
        }
    }
}

fn take<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K, max: usize) -> bool {
    let count = counts.get(&key).copied().unwrap_or(0);
    if count < max {
        counts.insert(key, count + 1);
    }
    count < max
}

/// Keys without connections are forgotten, or the map would grow with every address seen.
fn give_back<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// One host has a whole IPv6 /64 to itself.
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

    #[test]
    fn each_bound_holds_and_places_come_back() {
        let admission = admission(3, 2, 1);
        let admit = |address| admission.admit(ip(address), true);
        let mut one = admit("10.0.0.1").unwrap();
        let mut two = admit("::ffff:10.0.0.1").unwrap();
        assert_eq!(admit("10.0.0.1").unwrap_err(), Full::Source);
        let three = admit("10.0.0.2").unwrap();
        assert_eq!(admit("10.0.0.3").unwrap_err(), Full::Node);
        one.for_tenant("blue").unwrap();
        assert_eq!(two.for_tenant("blue").unwrap_err(), Full::Tenant);
        drop((one, two, three));
        let counts = admission.counts();
        assert_eq!(counts.all, 0);
        assert!(counts.by_source.is_empty() && counts.by_tenant.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_source() {
        let admission = admission(9, 1, 1);
        let admit = |address| admission.admit(ip(address), true);
        let _place = admit("2001:db8::1").unwrap();
        assert_eq!(admit("2001:db8::2").unwrap_err(), Full::Source);
        admit("2001:db8:0:1::1").unwrap();
    }

    #[test]
    fn forged_handshakes_take_no_place_of_whom_they_name() {
        let admission = admission(100, 4, 100);
        let begin = |validated| admission.admit(ip("10.0.0.1"), validated);
        let forged = [begin(false).unwrap(), begin(false).unwrap()];
        assert_eq!(begin(false).unwrap_err(), Full::Unvalidated);
        let mut real: Vec<Place> = (0..4).map(|_| begin(true).unwrap()).collect();
        assert_eq!(begin(true).unwrap_err(), Full::Source);
        admission.admit(ip("10.0.0.2"), false).unwrap();
        real.pop();
        let [mut first, mut second] = forged;
        first.validated().unwrap();
        assert_eq!(second.validated().unwrap_err(), Full::Source);
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
