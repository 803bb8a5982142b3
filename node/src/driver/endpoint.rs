//! Endpoints in answers: addresses that the client can reach.

use std::net::{IpAddr, SocketAddr};

use fabricbios_wire::{Answer, Endpoint, KindBinding, Reply};

/// Replaces a wildcard address in an answer by `ip`: the advertised address, or the address that the client reached. An
/// endpoint without an address is left out, because no client would accept the answer. The control plane serves the
/// sessions of a GPU, at `control`.
pub(crate) fn reachable(
    mut answer: Answer,
    ip: Option<IpAddr>,
    control: Option<Endpoint>,
) -> Answer {
    let Ok(Reply::Lease(info)) = &mut answer else {
        return answer;
    };
    if let KindBinding::Gpu(Some(gpu)) = &mut info.binding.kind {
        gpu.session_endpoint = control;
    }
    if let Some(bound) = info.binding.udp_endpoint {
        info.binding.udp_endpoint = place(bound, ip);
        if info.binding.udp_endpoint.is_none() {
            tracing::warn!(
                lease_id = %info.lease_id, %bound,
                "the lease's binding has no UDP endpoint: the address that clients reach is not known; --advertise IP sets it"
            );
        }
    }
    answer
}

/// `None`: no address is known, or the client reached a socket for IPv4 over IPv6.
fn place(bound: Endpoint, ip: Option<IpAddr>) -> Option<Endpoint> {
    if !bound.is_wildcard() {
        return Some(bound);
    }
    let bound = SocketAddr::from(bound);
    let ip = ip.map(|ip| ip.to_canonical())?;
    let served = bound.is_ipv6() || ip.is_ipv4();
    let place = Endpoint::from(SocketAddr::new(ip, bound.port()));
    Some(place).filter(|place| served && !place.is_wildcard())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse::<SocketAddr>().unwrap().into()
    }

    #[test]
    fn a_wildcard_becomes_what_the_asker_reached_or_nothing() {
        for (bound, reached, told) in [
            ("10.0.0.1:5702", Some("10.9.9.9"), Some("10.0.0.1:5702")),
            ("10.0.0.1:5702", None, Some("10.0.0.1:5702")),
            ("0.0.0.0:5702", Some("10.9.9.9"), Some("10.9.9.9:5702")),
            ("[2001:db8::1]:1", None, Some("[2001:db8::1]:1")),
            (
                "0.0.0.0:5702",
                Some("::ffff:10.9.9.9"),
                Some("10.9.9.9:5702"),
            ),
            ("0.0.0.0:5702", Some("2001:db8::2"), None),
            ("0.0.0.0:5702", None, None),
        ] {
            let reached = reached.map(|ip| ip.parse().unwrap());
            let told = told.map(endpoint);
            assert_eq!(place(endpoint(bound), reached), told, "{bound} {reached:?}");
        }
    }
}
