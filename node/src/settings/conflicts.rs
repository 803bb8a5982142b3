//! Checks for settings that contradict each other, whatever their source.

use std::{
    iter,
    net::{IpAddr, SocketAddr},
};

use super::{Named, Settings};

/// Checks the settings. `Err` names the setting and its source.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    let named = settings.named();
    settings.kinds.check(&named)?;
    addresses(settings, &named)
}

/// Checks that every UDP socket has its own address.
fn addresses(settings: &Settings, named: &Named<'_>) -> Result<(), String> {
    let listen = ("listen", settings.listen());
    let used: Vec<_> = iter::once(listen)
        .chain(settings.kinds.datagrams())
        .collect();
    for (index, (name, at)) in used.iter().enumerate() {
        for (other, its) in used.iter().skip(index + 1) {
            if clash(*at, *its) {
                return Err(format!(
                    "{} {at} and {} {its} are the same address: give one of them another port",
                    named.of(name),
                    named.of(other),
                ));
            }
        }
    }
    Ok(())
}

/// True if two sockets cannot have both addresses. `[::]` stands for every address, of IPv4 too.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |wide: IpAddr, ip: IpAddr| wide.is_unspecified() && (wide.is_ipv6() || ip.is_ipv4());
    let (ip, its) = (one.ip(), other.ip());
    let same_ip = ip == its || covers(ip, its) || covers(its, ip);
    same_ip && one.port() == other.port() && one.port() != 0
}
