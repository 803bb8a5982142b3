//! Settings that contradict each other, whatever their source.

use std::{
    iter,
    net::{IpAddr, SocketAddr},
};

use super::Settings;
use crate::kinds::settings::{Conflict, Conflicts};

/// What contradicts each other.
pub(super) fn of(settings: &Settings) -> Vec<Conflict> {
    let mut conflicts = Conflicts::new(settings.config.as_deref(), &settings.lines);
    settings.kinds.check(&mut conflicts);
    addresses(settings, &mut conflicts);
    schedulers(settings, &mut conflicts);
    let identity = ("metrics-identity", settings.metrics_identity.is_some());
    let (has_port, why) = (settings.metrics_listen.is_some(), "no pages are served");
    conflicts.needs(&[identity], has_port, "metrics-listen", why);
    conflicts.found
}

/// A scheduler that is named and found would get the same reports twice, and each of the two would refuse the other.
fn schedulers(settings: &Settings, conflicts: &mut Conflicts<'_>) {
    if let ([named, ..], [found, ..]) = (&settings.scheduler[..], &settings.discover[..]) {
        let one = format!("{} {named}", conflicts.named("scheduler"));
        let other = format!("{} {found}", conflicts.named("discover"));
        let why = "schedulers are named or found, not both: leave one of the two out";
        conflicts.both(one, other, why);
    }
}

/// Checks that every UDP socket has its own address.
fn addresses(settings: &Settings, conflicts: &mut Conflicts<'_>) {
    let listen = ("listen", settings.listen());
    let used: Vec<_> = iter::once(listen)
        .chain(settings.kinds.datagrams())
        .collect();
    for (index, (name, at)) in used.iter().enumerate() {
        for (other, its) in used.iter().skip(index + 1) {
            if clash(*at, *its) {
                conflicts.found.push(Conflict::Address {
                    one: format!("{} {at}", conflicts.named(name)),
                    other: format!("{} {its}", conflicts.named(other)),
                });
            }
        }
    }
}

/// True if two sockets cannot have both addresses. `[::]` stands for every address, of IPv4 too.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |wide: IpAddr, ip: IpAddr| wide.is_unspecified() && (wide.is_ipv6() || ip.is_ipv4());
    let (ip, its) = (one.ip(), other.ip());
    let same_ip = ip == its || covers(ip, its) || covers(its, ip);
    same_ip && one.port() == other.port() && one.port() != 0
}
