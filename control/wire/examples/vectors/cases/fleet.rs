//! NODE_REPORT, NODE_LIST, NODE_FORGET, and the redirect of a LEASE_ALLOC.

use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
use fabricbios_wire::*;

use super::{answers::answer, requests::request, *};
use crate::samples;

const REPORT: u16 = MessageType::NodeReport as u16;
const LIST: u16 = MessageType::NodeList as u16;
const ALLOC: u16 = MessageType::LeaseAlloc as u16;

fn endpoint(last: u8) -> Endpoint {
    Endpoint {
        addr: samples::gid(last),
        port: 5701,
    }
}

/// The inventory of a node without resources.
fn nothing() -> ResourceInventory {
    ResourceInventory {
        health: health::OK,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
        ..samples::inventory()
    }
}

fn node(inventory: ResourceInventory, labels: &[&str]) -> FleetNode {
    FleetNode {
        node_id: inventory.node_id,
        endpoint: endpoint(7),
        since_unix_ms: 1_800_000_000_001,
        labels: labels.iter().map(|it| (*it).to_owned()).collect(),
        inventory,
    }
}

fn away(number: u8, labels: &[&str]) -> AwayNode {
    AwayNode {
        node_id: NodeId([number; 32]),
        endpoint: endpoint(number),
        last_seen_unix_ms: 1_800_000_000_002,
        labels: labels.iter().map(|it| (*it).to_owned()).collect(),
    }
}

/// An inventory of this many bytes. A tag that no version knows fills it, so no encoder writes it.
fn inventory_of(length: usize) -> Vec<u8> {
    let plain = encode_structured(&nothing()).unwrap_or_default();
    let fill = length - plain.len();
    let area = u32::try_from(fill).unwrap_or(u32::MAX).to_be_bytes();
    let fixed = &plain[..plain.len() - 4];
    [fixed, &area, &tlv(0x7777, &vec![0; fill - 4])].concat()
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[..], bytes].concat()
}

#[rustfmt::skip] // One case a line.
pub(crate) fn requests(c: &mut Vec<Case>) {
    let report = |sequence, endpoint, inventory| {
        Request::NodeReport(NodeReport { sequence, endpoint, inventory })
    };
    let first = report(1, endpoint(7), samples::inventory());
    request(c, "node_report", "NODE_REPORT, the first of a connection", first);
    let addr = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let v6 = report(0x0102_0304_0506_0708, Endpoint { addr, port: 5701 }, nothing());
    request(c, "node_report_empty", "NODE_REPORT over IPv6, no resources", v6);
    request(c, "node_list_first", "NODE_LIST from the start", Request::NodeList(NodeId([0; 32])));
    request(c, "node_list_next", "NODE_LIST, next page", Request::NodeList(samples::NODE));
    request(c, "node_forget", "NODE_FORGET", Request::NodeForget(samples::NODE));
    let bytes = report_of(endpoint(7), &inventory_of(REPORT_BYTES_MAX));
    let read = report(9, endpoint(7), nothing());
    c.push(Case {
        name: "request_node_report_longest".to_owned(),
        kind: Kind::Request,
        about: "NODE_REPORT with an inventory of 57,344 bytes, most of them of an unknown tag".to_owned(),
        expect: Expect::Accepted(framed(asked(MessageType::NodeReport), &bytes, &read)),
        bytes,
    });
}

fn report_of(endpoint: Endpoint, inventory: &[u8]) -> Vec<u8> {
    let payload = [&9_u64.to_be_bytes()[..], &place(endpoint), inventory].concat();
    frame(0, REPORT, &payload)
}

fn place(endpoint: Endpoint) -> Vec<u8> {
    [&endpoint.addr[..], &endpoint.port.to_be_bytes()].concat()
}

/// `[::]:5701`, `0.0.0.0:5701` and port 0: nobody can be reached there.
fn wildcards() -> [(&'static str, &'static str, Endpoint); 3] {
    let mut v4 = samples::gid(0);
    v4[12..].fill(0);
    let (v6, port) = ([0; 16], 5701);
    let no_port = Endpoint {
        port: 0,
        ..endpoint(7)
    };
    [
        ("wildcard", "[::]:5701", Endpoint { addr: v6, port }),
        ("wildcard_v4", "0.0.0.0:5701", Endpoint { addr: v4, port }),
        ("port_0", "192.0.2.7:0", no_port),
    ]
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_requests(c: &mut Vec<Case>) {
    let plain = inventory_of(100);
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_request_node_{name}"), Kind::Request, about, bytes, error);
    };
    for (name, about, endpoint) in wildcards() {
        add(&format!("report_{name}"), about, report_of(endpoint, &plain), InvalidArgs);
    }
    add("report_cut", "no inventory", report_of(endpoint(7), &[]), Malformed);
    let about = "a byte after the inventory";
    add("report_trailing", about, report_of(endpoint(7), &[&plain[..], &[0]].concat()), Malformed);
    let long = report_of(endpoint(7), &inventory_of(REPORT_BYTES_MAX + 1));
    add("report_57345", "an inventory one byte too long", long, Malformed);
    let unknown = [&plain[..44], &[0; 10], &counted(&tlv(0x0B03, &[1; 16]))].concat();
    add("report_extension", "0x0B03 without a class", report_of(endpoint(7), &unknown), InvalidIntent);
    add("list_cut", "NODE_LIST with 31 bytes", frame(0, LIST, &[1; 31]), Malformed);
    let forget = MessageType::NodeForget as u16;
    add("forget_cut", "NODE_FORGET with 31 bytes", frame(0, forget, &[1; 31]), Malformed);
    add("list_long", "NODE_LIST with 33 bytes", frame(0, LIST, &[1; 33]), Malformed);
}

pub(super) fn candidate(last: u8) -> Candidate {
    Candidate {
        node_id: NodeId([last; 32]),
        endpoint: endpoint(last),
        resource_id: ResourceId(samples::ARENA.0 + u128::from(last)),
    }
}

#[rustfmt::skip] // One case a line.
pub(crate) fn answers(c: &mut Vec<Case>) {
    use MessageType as M;
    let redirect = |count: u8| Reply::Redirect((1..=count).map(candidate).collect());
    answer(c, "redirect", "LEASE_ALLOC goes to one node", M::LeaseAlloc, redirect(1));
    answer(c, "redirect_8", "LEASE_ALLOC goes to one of eight nodes", M::LeaseAlloc, redirect(8));
    let explained = |why: &str| Reply::Explained {
        candidates: vec![candidate(1), candidate(2)],
        why: why.to_owned(),
    };
    answer(c, "explained", "the same with its reasons", M::LeaseAlloc, explained("1 fenced\nbest: é"));
    answer(c, "explained_empty", "reasons without a byte", M::LeaseAlloc, explained(""));
    let longest = "x".repeat(EXPLANATION_BYTES_MAX);
    answer(c, "explained_longest", "reasons of 4,096 bytes", M::LeaseAlloc, explained(&longest));
    answer(c, "node_report", "NODE_REPORT is taken", M::NodeReport, Reply::Reported);
    let other = ResourceInventory { node_id: NodeId([0x5b; 32]), ..nothing() };
    let last = other.node_id;
    let labels = ["rack=r-7", "zone=a"];
    let page = FleetPage {
        nodes: vec![node(samples::inventory(), &labels), node(other, &[])],
        away: vec![away(9, &["rack=r-9"]), away(10, &[])],
        next: Some(last),
    };
    answer(c, "node_forget", "NODE_FORGET is done", M::NodeForget, Reply::Forgotten);
    answer(c, "node_list", "NODE_LIST, more to come", M::NodeList, Reply::Nodes(page));
    answer(c, "node_list_empty", "NODE_LIST, no nodes", M::NodeList, Reply::Nodes(FleetPage::default()));
    let label = format!("a={}", "b".repeat(LABEL_BYTES_MAX - 2));
    let page = FleetPage {
        nodes: vec![node(nothing(), &[label.as_str(); LABELS_MAX])],
        away: vec![away(9, &[label.as_str(); LABELS_MAX])],
        next: None,
    };
    answer(c, "node_list_labels", "NODE_LIST, sixteen of the longest labels", M::NodeList, Reply::Nodes(page));
}

/// Whether an answer to such a request may be a redirect.
fn has_redirect(message: MessageType) -> bool {
    use MessageType as M;
    let about_a_lease = [
        M::LeaseRenew,
        M::LeaseQuery,
        M::LeaseFree,
        M::LeaseBind,
        M::LeaseRotate,
        M::LeaseRevoke,
    ];
    message == M::LeaseAlloc || about_a_lease.contains(&message)
}

/// The bytes of a redirect with these candidates.
fn redirect(count: u16, candidates: &[Vec<u8>]) -> Vec<u8> {
    [&[0, 15][..], &count.to_be_bytes(), &candidates.concat()].concat()
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_redirects(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, message: u16, payload: &[u8], error| {
        let name = format!("bad_answer_redirect_{name}");
        let bytes = frame(REPLY, message, payload);
        bad(c, &name, Kind::Answer(asked_by(message)), about, bytes, error);
    };
    let to = |endpoint: Endpoint, id: u128| {
        [&[7; 32][..], &place(endpoint), &id.to_be_bytes()].concat()
    };
    let one = to(endpoint(7), samples::ARENA.0);
    add("empty", "no candidates", ALLOC, &redirect(0, &[]), InvalidArgs);
    add("9", "nine candidates", ALLOC, &redirect(9, &vec![one.clone(); 9]), Malformed);
    add("fewer", "two candidates, of which one is there", ALLOC, &redirect(2, std::slice::from_ref(&one)), Malformed);
    add("cut", "a candidate of 65 bytes", ALLOC, &redirect(1, &[one[..65].to_vec()]), Malformed);
    add("trailing", "a byte after the candidates", ALLOC, &redirect(1, &[one.clone(), vec![0]]), Malformed);
    add("resource_0", "a resource id of zero", ALLOC, &redirect(1, &[to(endpoint(7), 0)]), InvalidArgs);
    let mut explained = |name: &str, about: &str, message: u16, text: &[u8], error| {
        let mut payload = redirect(1, &[one.clone(), text.to_vec()]);
        payload[1] = 16;
        add(&format!("why_{name}"), about, message, &payload, error);
    };
    let longer = counted(&[b'x'; EXPLANATION_BYTES_MAX + 1]);
    explained("none", "an explained redirect without reasons", ALLOC, &[], Malformed);
    explained("4097", "reasons one byte too long", ALLOC, &longer, Malformed);
    explained("cut", "reasons of one byte that is not there", ALLOC, &[0, 0, 0, 1], Malformed);
    explained("not_utf8", "0xff", ALLOC, &counted(&[0xFF]), Malformed);
    explained("trailing", "a byte after the reasons", ALLOC, &[0; 5], Malformed);
    let query = MessageType::LeaseQuery as u16;
    explained("of_lease_query", "reasons of another message", query, &[0; 4], InvalidArgs);
    for (name, about, endpoint) in wildcards() {
        add(name, about, ALLOC, &redirect(1, &[to(endpoint, samples::ARENA.0)]), InvalidArgs);
    }
    let good = redirect(1, &[one]);
    for message in MessageType::ALL.iter().filter(|it| !has_redirect(**it)) {
        let name = format!("of_{}", message.name().to_lowercase());
        add(&name, "nobody is redirected with such a request", *message as u16, &good, InvalidArgs);
    }
    let mut status = good;
    status[1] = 17;
    add("status_17", "an unknown status", ALLOC, &status, InvalidArgs);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_pages(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, page: &[u8], error| {
        let name = format!("bad_answer_nodes_{name}");
        let bytes = frame(REPLY, LIST, &[&[0, 0], page].concat());
        bad(c, &name, Kind::Answer(asked(MessageType::NodeList)), about, bytes, error);
    };
    let one = |endpoint: Endpoint, labels: &[u8], inventory: &[u8]| {
        [&[0, 0, 1][..], &[7; 32], &place(endpoint), &[0; 8], labels, inventory, &[0, 0]].concat()
    };
    let (plain, no_labels) = (counted(&inventory_of(100)), [0, 0]);
    let whole = one(endpoint(7), &no_labels, &plain);
    let gone = |count: u16, endpoint: Endpoint, labels: &[u8]| {
        [&[0, 0, 0][..], &count.to_be_bytes(), &[7; 32], &place(endpoint), &[0; 8], labels].concat()
    };
    add("presence_2", "2 for a next id", &[2, 0, 0, 0, 0], InvalidArgs);
    add("no_away", "no number of members that are away", &[0, 0, 0], Malformed);
    add("away_257", "more members away than a page has", &[0, 0, 0, 1, 1], Malformed);
    add("away_fewer", "two members away, of which one is there", &gone(2, endpoint(7), &[0, 0]), Malformed);
    add("away_labels", "labels that are not there", &gone(1, endpoint(7), &[0, 1]), Malformed);
    for (name, about, endpoint) in wildcards() {
        add(&format!("away_{name}"), about, &gone(1, endpoint, &[0, 0]), InvalidArgs);
    }
    add("next_cut", "31 bytes of a next id", &[&[1][..], &[1; 31]].concat(), Malformed);
    add("count_257", "more nodes than a page has", &[0, 1, 1], Malformed);
    add("count_256", "nodes that are not there", &[0, 1, 0], Malformed);
    add("cut", "the last byte is missing", &whole[..whole.len() - 1], Malformed);
    add("trailing", "a byte after the nodes", &[&whole[..], &[0]].concat(), Malformed);
    for (name, about, endpoint) in wildcards() {
        add(name, about, &one(endpoint, &no_labels, &plain), InvalidArgs);
    }
    let mut labelled = |name: &str, about: &str, count: u16, label: &[u8]| {
        let labels = [&count.to_be_bytes()[..], &counted(label).repeat(count.into())].concat();
        add(name, about, &one(endpoint(7), &labels, &plain), Malformed);
    };
    labelled("labels_17", "one label more than 16", 17, b"a=b");
    labelled("label_256", "a label one byte too long", 1, &[b'a'; 256]);
    labelled("label_not_utf8", "0xff", 1, b"a=\xff");
    let mut of = |name: &str, about: &str, inventory: &[u8]| {
        add(name, about, &one(endpoint(7), &no_labels, inventory), Malformed);
    };
    of("inventory_57345", "an inventory one byte too long", &counted(&inventory_of(REPORT_BYTES_MAX + 1)));
    of("inventory_none", "an inventory of no bytes", &counted(&[]));
    let short = inventory_of(100);
    of("inventory_short", "an inventory that its length cuts", &counted(&short[..99]));
    of("inventory_trailing", "a byte after the inventory", &counted(&[&short[..], &[0]].concat()));
}
