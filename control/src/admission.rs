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

/// Which bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Node,
    Source,
    Tenant,
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
    by_source: HashMap<IpAddr, usize>,
    by_tenant: HashMap<String, usize>,
}

/// A connection's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    source: IpAddr,
    tenant: Option<String>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            counts: Mutex::default(),
        })
    }

    /// A place for a connection from `address`.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let source = source_of(address);
        let mut counts = self.counts();
        if counts.all >= self.limits.connections_max {
            return Err(Full::Node);
        }
        if !take(
            &mut counts.by_source,
            source,
            self.limits.connections_per_source_max,
        ) {
            return Err(Full::Source);
        }
        counts.all += 1;
        Ok(Place {
            admission: Arc::clone(self),
            source,
            tenant: None,
        })
    }

    /// Whether newcomers should first show that their address is theirs.
    pub(crate) fn is_busy(&self) -> bool {
        self.counts().all >= self.limits.connections_max / 2
    }

    /// A thread that panicked while counting has left counts that are still counts.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
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
        give_back(&mut counts.by_source, &self.source);
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
        let mut one = admission.admit(ip("10.0.0.1")).unwrap();
        let mut two = admission.admit(ip("::ffff:10.0.0.1")).unwrap();
        assert_eq!(admission.admit(ip("10.0.0.1")).unwrap_err(), Full::Source);
        let three = admission.admit(ip("10.0.0.2")).unwrap();
        assert_eq!(admission.admit(ip("10.0.0.3")).unwrap_err(), Full::Node);
        one.for_tenant("blue").unwrap();
        assert_eq!(two.for_tenant("blue").unwrap_err(), Full::Tenant);
        drop((one, two, three));
        assert_eq!(admission.counts().all, 0);
        assert!(admission.counts().by_source.is_empty());
        assert!(admission.counts().by_tenant.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_source() {
        let admission = admission(9, 1, 1);
        let _place = admission.admit(ip("2001:db8::1")).unwrap();
        assert_eq!(
            admission.admit(ip("2001:db8::2")).unwrap_err(),
            Full::Source
        );
        admission.admit(ip("2001:db8:0:1::1")).unwrap();
    }
}
