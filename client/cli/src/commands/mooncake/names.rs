//! Names of clients, and GIDs as Mooncake writes them.

use std::net::{IpAddr, SocketAddr};

/// Longest name of a client.
const NAME_MAX: usize = 255;

/// Where a client that calls itself `name` (`ADDR:PORT`, or with `@DEVICE`) listens. Only the address that it calls from is
/// dialled, and from this machine any of this machine.
pub(super) fn listener(
    name: &str,
    from: IpAddr,
    is_local: impl FnOnce(IpAddr) -> bool,
) -> Result<SocketAddr, String> {
    let address = name.split_once('@').map_or(name, |(address, _)| address);
    let address: SocketAddr = address.parse().map_err(|_name| {
        "its name is no IP address with a port: initialize its engine with one".to_owned()
    })?;
    let (ip, from) = (address.ip().to_canonical(), from.to_canonical());
    match ip == from || (from.is_loopback() && is_local(ip)) {
        true => Ok(address),
        false => Err(format!("it calls itself {address} and calls from {from}")),
    }
}

/// Whether a client's name can be printed and kept.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    match name.len() <= NAME_MAX && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(format!(
            "a client's name has at most {NAME_MAX} bytes and no control characters"
        )),
    }
}

/// 16 bytes in hexadecimal with colons: the form that Mooncake parses.
pub(super) fn raw_gid(gid: [u8; 16]) -> String {
    gid.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "10.0.0.2:15001@mlx5_0";

    #[test]
    fn names_that_cannot_be_printed_are_refused() {
        check_name(CLIENT).unwrap();
        for name in ["x\n", "\u{1b}[2J", &"x".repeat(256)] {
            check_name(name).unwrap_err();
        }
    }

    #[test]
    fn only_who_calls_from_an_address_is_called_there() {
        let listener = |name, from: [u8; 4]| {
            let local = |ip: IpAddr| ip == IpAddr::from([10, 0, 0, 1]);
            super::listener(name, from.into(), local).map(|it| it.port())
        };
        assert_eq!(listener(CLIENT, [10, 0, 0, 2]), Ok(15_001));
        assert_eq!(listener("10.0.0.1:7", [127, 0, 0, 1]), Ok(7));
        assert_eq!(listener("[::ffff:10.0.0.2]:7", [10, 0, 0, 2]), Ok(7));
        listener(CLIENT, [127, 0, 0, 1]).unwrap_err();
        listener(CLIENT, [10, 0, 0, 1]).unwrap_err();
        for name in [
            "",
            "@",
            "host:1@mlx5_0",
            "10.0.0.2@mlx5_0",
            "10.0.0.2:99999",
        ] {
            listener(name, [10, 0, 0, 2]).unwrap_err();
        }
    }
}
