//! `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address, to socket addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::{DEFAULT_PORT, Error};

/// Host and port of a node as people write it.
pub(crate) fn parse(node: &str) -> Result<(String, u16), Error> {
    if let Ok(address) = node.parse::<SocketAddr>() {
        let link = match address {
            // The resolver takes the number of the link behind a link-local address (RFC 4007 §11).
            SocketAddr::V6(it) if it.scope_id() != 0 => format!("%{}", it.scope_id()),
            _ => String::new(),
        };
        return Ok((format!("{}{link}", address.ip()), address.port()));
    }
    let unbracketed = node
        .strip_prefix('[')
        .and_then(|n| n.strip_suffix(']'))
        .unwrap_or(node);
    if unbracketed.parse::<IpAddr>().is_ok() {
        return Ok((unbracketed.to_owned(), DEFAULT_PORT));
    }
    let (host, port) = match node.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().ok_or_else(|| bad(node))?),
        None => (node, DEFAULT_PORT),
    };
    let plausible = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']) && port != 0;
    plausible
        .then(|| (host.to_owned(), port))
        .ok_or_else(|| bad(node))
}

fn bad(node: &str) -> Error {
    Error::Usage(format!(
        "{node:?} is no node address; write HOST, HOST:PORT, [IPV6]:PORT or discover:IFACE"
    ))
}

/// Resolves a node to its addresses, in the order of the resolver.
pub(crate) async fn resolve(node: &str) -> Result<Vec<SocketAddr>, Error> {
    let (host, port) = parse(node)?;
    let unreachable = |why: String| Error::Unreachable {
        node: node.to_owned(),
        why,
        may_have_happened: false,
    };
    let found = tokio::net::lookup_host((host.as_str(), port))
        .await
        .map_err(|e| unreachable(format!("cannot resolve {host}: {e}")))?;
    let addresses: Vec<_> = found.collect();
    if addresses.is_empty() {
        return Err(unreachable(format!("{host} has no address")));
    }
    Ok(addresses)
}

/// The unspecified address of the family of `to`, to send from.
pub(crate) fn any_local(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_address() {
        let cases = [
            ("10.0.0.1", "10.0.0.1", 5701),
            ("10.0.0.1:7", "10.0.0.1", 7),
            ("::1", "::1", 5701),
            ("[::1]", "::1", 5701),
            ("[2001:db8::7]:99", "2001:db8::7", 99),
            ("rack7-node3.example", "rack7-node3.example", 5701),
            ("localhost:5702", "localhost", 5702),
        ];
        for (text, host, port) in cases {
            assert_eq!(parse(text).unwrap(), (host.to_owned(), port), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_told() {
        for text in [
            "",
            ":5701",
            "host:",
            "host:port",
            "host:70000",
            "host:0",
            "http://host",
            "a b",
        ] {
            let Error::Usage(message) = parse(text).unwrap_err() else {
                panic!("{text}")
            };
            assert!(message.contains(&format!("{text:?}")), "{message}");
        }
    }
}
