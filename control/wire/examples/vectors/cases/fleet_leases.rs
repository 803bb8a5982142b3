//! NODE_LEASES, FLEET_LEASES, and the redirects of requests about a lease.

use LeaseError::{InvalidArgs, Malformed};
use fabricbios_wire::*;

use super::{answers::answer, fleet::candidate, requests::request, *};
use crate::samples;

const REPORT: u16 = MessageType::NodeLeases as u16;
const LIST: u16 = MessageType::FleetLeases as u16;
const OTHER_FABRIC: &str = "0123456789abcdef0123456789abcdef";

fn lease(last: u8, tenant: &str) -> ReportedLease {
    ReportedLease {
        lease_id: LeaseId(samples::LEASE.0 + u128::from(last)),
        resource_id: samples::ARENA,
        resource_type: ResourceType::Mem,
        phase: LeasePhase::Active,
        capacity: 1 << 20,
        expires_at_unix_ms: 1_800_000_000_001,
        tenant: tenant.to_owned(),
    }
}

/// A tenant with the longest key.
fn longest() -> String {
    format!("{}@{OTHER_FABRIC}", "n".repeat(TENANT_BYTES_MAX))
}

fn most(tenant: &str) -> Vec<ReportedLease> {
    let numbers = 0..LEASES_PER_REPORT_MAX as u128;
    let of = |number| ReportedLease {
        lease_id: LeaseId(samples::LEASE.0 + number),
        ..lease(0, tenant)
    };
    numbers.map(of).collect()
}

#[rustfmt::skip] // One case a line.
pub(crate) fn requests(c: &mut Vec<Case>) {
    let report = |sequence, part, leases, gone| {
        Request::NodeLeases(LeaseReport { sequence, part, leases, gone })
    };
    let two = vec![lease(0, "blue"), ReportedLease {
        resource_type: ResourceType::Gpu,
        phase: LeasePhase::Fenced,
        ..lease(1, &format!("blue@{OTHER_FABRIC}"))
    }];
    let gone = vec![LeaseId(1), LeaseId(u128::MAX)];
    let changes = report(0x0102_0304_0506_0708, ReportPart::Changes, two, gone);
    request(c, "node_leases", "NODE_LEASES with what has changed", changes);
    for part in &ReportPart::ALL[1..] {
        let name = format!("node_leases_{part}");
        request(c, &name, "NODE_LEASES with a part of a list", report(2, *part, vec![lease(7, "a")], vec![]));
    }
    let none = report(2, ReportPart::Whole, vec![], vec![]);
    request(c, "node_leases_none", "NODE_LEASES of a node without leases", none);
    let gone = most("a").iter().map(|it| it.lease_id).collect();
    let largest = report(u64::MAX, ReportPart::Changes, most(&longest()), gone);
    request(c, "node_leases_largest", "NODE_LEASES with as much as it can have", largest);
    let first = Request::FleetLeases { after: LeaseId(0), after_node: NodeId([0; 32]) };
    request(c, "fleet_leases_first", "FLEET_LEASES from the start", first);
    let next = Request::FleetLeases { after: samples::LEASE, after_node: samples::NODE };
    request(c, "fleet_leases_next", "FLEET_LEASES, next page", next);
}

/// The bytes of a lease of this tenant, with its phase.
fn told(phase: u8, tenant: &[u8]) -> Vec<u8> {
    let length = u32::try_from(tenant.len()).unwrap_or(u32::MAX);
    let ids = [
        samples::LEASE.0.to_be_bytes(),
        samples::ARENA.0.to_be_bytes(),
    ]
    .concat();
    [
        &ids[..],
        &[0, 2, phase],
        &[0; 16],
        &length.to_be_bytes(),
        tenant,
    ]
    .concat()
}

fn list(count: u16, items: &[u8]) -> Vec<u8> {
    [&count.to_be_bytes()[..], items].concat()
}

/// Leases that no decoder takes, and why.
fn bad_leases() -> Vec<(&'static str, &'static str, Vec<u8>, LeaseError)> {
    let (good, id) = (told(1, b"blue"), [0; 16]);
    let key = |fabric: &str| told(1, format!("blue@{fabric}").as_bytes());
    let (upper, longer) = (OTHER_FABRIC.to_uppercase(), format!("{OTHER_FABRIC}0"));
    vec![
        (
            "id_0",
            "a lease id of zero",
            [&id, &good[16..]].concat(),
            InvalidArgs,
        ),
        (
            "resource_0",
            "a resource id of zero",
            [&good[..16], &id, &good[32..]].concat(),
            InvalidArgs,
        ),
        ("phase_7", "an unknown phase", told(7, b"blue"), InvalidArgs),
        ("tenant_none", "no tenant", told(1, b""), InvalidArgs),
        (
            "tenant_upper",
            "a capital letter in the tenant",
            told(1, b"Blue"),
            InvalidArgs,
        ),
        (
            "tenant_65",
            "a name one byte too long",
            told(1, &[b'a'; 65]),
            InvalidArgs,
        ),
        (
            "tenant_98",
            "a key one byte too long",
            told(1, &[b'a'; 98]),
            Malformed,
        ),
        ("tenant_not_utf8", "0xff", told(1, b"a\xff"), Malformed),
        (
            "fabric_none",
            "no fingerprint behind the @",
            key(""),
            InvalidArgs,
        ),
        (
            "fabric_upper",
            "a fingerprint in capital letters",
            key(&upper),
            InvalidArgs,
        ),
        (
            "fabric_31",
            "a digit too few",
            key(&OTHER_FABRIC[1..]),
            InvalidArgs,
        ),
        ("fabric_33", "a digit too many", key(&longer), InvalidArgs),
    ]
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_requests(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, message: u16, payload: &[u8], error| {
        let name = format!("bad_request_{name}");
        bad(c, &name, Kind::Request, about, frame(0, message, payload), error);
    };
    let report = |part: u8, leases: &[u8], gone: &[u8]| {
        [&9_u64.to_be_bytes()[..], &[part], leases, gone].concat()
    };
    let none = list(0, &[]);
    for (name, about, lease, error) in bad_leases() {
        add(&format!("node_leases_{name}"), about, REPORT, &report(0, &list(1, &lease), &none), error);
    }
    let mut of = |name: &str, about: &str, payload: &[u8], error| {
        add(&format!("node_leases_{name}"), about, REPORT, payload, error);
    };
    of("part_5", "an unknown part", &report(5, &none, &none), InvalidArgs);
    of("no_gone", "no list of leases that are gone", &report(0, &none, &[]), Malformed);
    of("trailing", "a byte after the lists", &report(0, &none, &[0, 0, 0]), Malformed);
    of("count_257", "more leases than a report has", &report(0, &[1, 1], &none), Malformed);
    of("count_256", "leases that are not there", &report(0, &[1, 0], &none), Malformed);
    of("gone_257", "more ids than a report has", &report(0, &none, &[1, 1]), Malformed);
    of("gone_256", "ids that are not there", &report(0, &none, &[1, 0]), Malformed);
    of("gone_0", "an id of zero", &report(0, &none, &list(1, &[0; 16])), InvalidArgs);
    for part in 1..=4 {
        let payload = report(part, &none, &list(1, &[1; 16]));
        of(&format!("gone_in_part_{part}"), "a new list has no leases that are gone", &payload, InvalidArgs);
    }
    add("fleet_leases_cut", "FLEET_LEASES with 47 bytes", LIST, &[1; 47], Malformed);
    add("fleet_leases_long", "FLEET_LEASES with 49 bytes", LIST, &[1; 49], Malformed);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn answers(c: &mut Vec<Case>) {
    use MessageType as M;
    answer(c, "node_leases", "NODE_LEASES is taken", M::NodeLeases, Reply::Reported);
    let of = |lease| FleetLease { node_id: samples::NODE, lease };
    let page = |leases: Vec<ReportedLease>, more| {
        Reply::FleetLeases(FleetLeases { leases: leases.into_iter().map(of).collect(), more })
    };
    let two = vec![lease(0, "blue"), lease(1, &format!("blue@{OTHER_FABRIC}"))];
    answer(c, "fleet_leases", "FLEET_LEASES, more to come", M::FleetLeases, page(two, true));
    answer(c, "fleet_leases_empty", "FLEET_LEASES, no leases", M::FleetLeases, page(vec![], false));
    answer(c, "fleet_leases_largest", "FLEET_LEASES, a full page", M::FleetLeases, page(most(&longest()), true));
    for message in [M::LeaseRenew, M::LeaseQuery, M::LeaseFree, M::LeaseBind, M::LeaseRotate, M::LeaseRevoke] {
        let name = format!("redirect_of_{}", message.name().to_lowercase());
        answer(c, &name, "the lease is at this node", message, Reply::Redirect(vec![candidate(1)]));
    }
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_pages(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, page: &[u8], error| {
        let name = format!("bad_answer_fleet_leases_{name}");
        let bytes = frame(REPLY, LIST, &[&[0, 0], page].concat());
        bad(c, &name, Kind::Answer(asked(MessageType::FleetLeases)), about, bytes, error);
    };
    let page = |more: u8, leases: &[u8]| [&[more][..], leases].concat();
    for (name, about, lease, error) in bad_leases() {
        let leases = list(1, &[&[7; 32][..], &lease].concat());
        add(name, about, &page(0, &leases), error);
    }
    let lease = told(1, b"blue");
    let cut = [&[7; 32][..], &lease[..lease.len() - 1]].concat();
    add("cut", "the last byte is missing", &page(0, &list(1, &cut)), Malformed);
    add("more_2", "2 for a bool", &page(2, &[0, 0]), InvalidArgs);
    add("count_257", "more leases than a page has", &page(0, &[1, 1]), Malformed);
    add("count_256", "leases that are not there", &page(0, &[1, 0]), Malformed);
    add("trailing", "a byte after the leases", &page(0, &[0, 0, 0]), Malformed);
}
