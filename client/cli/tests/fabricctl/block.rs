//! Block storage: the requests, the output, and the command lines that are refused before any request.

use fabricbios_wire::{
    Binding, BlockTerms, DhchapSecret, Effective, HostId, KindBinding, LeaseInfo, Limits,
    NvmeofAddress, NvmeofBinding, NvmeofTransport, Reply, Request, ResourceType, Transport,
};
use serde_json::json;

use crate::{
    LEASE_TEXT,
    common::{FakeNode, honest, lease},
    fails, granting, json_of, line_of, run, saying, text_of,
};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b";
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const CTRL_SECRET: &str = "DHHC-1:01:c2VjcmV0:";

pub(crate) fn address(transport: NvmeofTransport, place: &str) -> NvmeofAddress {
    let place: std::net::SocketAddr = place.parse().unwrap();
    NvmeofAddress {
        transport,
        endpoint: place.into(),
    }
}

pub(crate) fn binding() -> NvmeofBinding {
    NvmeofBinding {
        addresses: vec![
            address(NvmeofTransport::Tcp, "10.0.0.1:4420"),
            address(NvmeofTransport::Rdma, "[2001:db8::7]:4421"),
        ],
        subsystem: "nqn.2025-01.io.example:lease".parse().unwrap(),
        nsid: 1,
        host_nqn: HOST.parse().unwrap(),
        host_id: HostId::new([7; 16]).unwrap(),
        dhchap_secret: DhchapSecret::new(SECRET).unwrap(),
        dhchap_ctrl_secret: DhchapSecret::new(CTRL_SECRET),
        ctrl_loss_secs: 5,
        block_bytes: 4_096,
    }
}

pub(crate) fn block_lease() -> LeaseInfo {
    LeaseInfo {
        effective: Effective {
            transport: Some(Transport::NvmeTcp),
            read_only: true,
            mutual_auth: true,
            ..Effective::default()
        },
        binding: Binding {
            limits: Some(Limits {
                offset: 0,
                length: 256,
            }),
            kind: KindBinding::Block(Some(Box::new(binding()))),
            ..Binding::plain(ResourceType::Block)
        },
        ..lease(60_000)
    }
}

#[test]
fn an_alloc_asks_for_what_its_flags_say() {
    let node = FakeNode::start(granting());
    let flags = format!(
        "--transport both --hostnqn {HOST} --hostid 0A0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b \
         --read-only --mutual-auth --rotate-on-renew --grace-secs 5 \
         --resource 0000000000000000000000000000feed"
    );
    json_of(
        &node,
        &format!("lease alloc block --bytes 1GiB --secs 10 {flags}"),
    );
    json_of(&node, "lease alloc block --bytes 1GiB --secs 10");
    let asked = node.asked();
    let [Request::LeaseAlloc(full), Request::LeaseAlloc(plain)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    let expected = BlockTerms {
        read_only: true,
        host_nqn: Some(HOST.parse().unwrap()),
        host_id: Some("0a0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b".parse().unwrap()),
        mutual_auth: true,
    };
    assert_eq!(full.terms, expected.into());
    assert_eq!(
        (full.transport, full.rotate_on_renew, full.grace_secs),
        (Transport::Both, true, 5)
    );
    assert!(plain.terms.is_plain() && plain.transport == Transport::Auto);
}

#[test]
fn what_could_never_be_is_refused_before_the_node_is_asked() {
    let node = FakeNode::start(granting());
    let long = format!("--hostnqn nqn.2026-12.org.example:{:a<200}", "");
    for (flags, word) in [
        ("--hostnqn ../../../etc/passwd", "nqn.yyyy-mm"),
        ("--hostnqn nqn.2014-08.org.example:a/../b", "character"),
        ("--hostnqn nqn.2014-08.org.example:a,hostid=b", "character"),
        ("--hostnqn nqn.2014-13.org.example:a", "date"),
        (long.as_str(), "223"),
        ("--hostid 3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b", "--hostnqn"),
        (
            "--hostnqn nqn.2014-08.org.example:a --hostid 00000000-0000-0000-0000-000000000000",
            "UUID",
        ),
        ("--transport rdma", "nvme-tcp"),
        ("--transport udp --mutual-auth", "NVMe-oF"),
        (
            "--transport udp --hostnqn nqn.2014-08.org.example:a",
            "NVMe-oF",
        ),
    ] {
        let (status, object) = fails(
            &node,
            &format!("lease alloc block --bytes 1 --secs 1 {flags}"),
        );
        assert_eq!(status, 2, "{flags}: {object}");
        let message = object["message"].as_str().unwrap();
        assert!(message.contains(word), "{flags}: {message}");
    }
    assert_eq!(node.asked(), []);
}

#[test]
fn a_node_that_leaves_a_term_out_gets_its_lease_back() {
    for flag in ["--read-only", "--mutual-auth"] {
        let node = FakeNode::start(|request: &Request| match request {
            Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
                capacity: alloc.capacity,
                effective: Effective {
                    read_only: false,
                    mutual_auth: false,
                    ..honest(alloc)
                },
                ..block_lease()
            })),
            _ => Ok(Reply::Lease(block_lease())),
        });
        let (status, object) = fails(
            &node,
            &format!("lease alloc block --bytes 1MiB --secs 9 {flag}"),
        );
        assert_eq!(
            (status, &object["reason"]["code"]),
            (3, &json!("FailedClosed"))
        );
        assert!(matches!(node.asked().last(), Some(Request::LeaseFree(_))));
    }
}

#[test]
fn a_lease_for_another_host_is_given_back() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
            capacity: alloc.capacity,
            effective: honest(alloc),
            ..block_lease()
        })),
        _ => Ok(Reply::Lease(block_lease())),
    });
    let other = "nqn.2014-08.org.example:me";
    let line = "lease alloc block --bytes 1MiB --secs 9 --hostnqn";
    let (status, object) = fails(&node, &format!("{line} {other}"));
    assert_eq!(status, 3, "{object}");
    assert!(
        object["message"].as_str().unwrap().contains(other),
        "{object}"
    );
    assert!(matches!(node.asked().last(), Some(Request::LeaseFree(_))));
    json_of(&node, &format!("{line} {HOST}"));
}

#[test]
fn a_size_that_was_rounded_up_is_told() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
            capacity: alloc.capacity.next_multiple_of(4_096),
            effective: honest(alloc),
            ..block_lease()
        })),
        other => panic!("{other:?}"),
    });
    let output = run(&node, "lease alloc block --bytes 5000 --secs 9");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("asked for 4.8 KiB (5000), granted 8 KiB (8192)"),
        "{told}"
    );
    let output = run(&node, "lease alloc block --bytes 8KiB --secs 9");
    assert!(output.stderr.is_empty(), "{output:?}");
    let rounded = json_of(&node, "lease alloc block --bytes 5000 --secs 9");
    assert_eq!(
        (&rounded["capacity"], &rounded["asked_capacity"]),
        (&json!(8_192), &json!(5_000))
    );
    let exact = json_of(&node, "lease alloc block --bytes 8KiB --secs 9");
    assert!(exact.get("asked_capacity").is_none(), "{exact}");
}

#[test]
fn the_json_of_nvme_of_is_the_contract() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let mut json = json_of(&node, &format!("lease query {LEASE_TEXT}"));
    let nvmeof = json["binding"]["nvmeof"].take();
    let connect = nvmeof["connect"].as_str().unwrap();
    assert!(
        connect.starts_with("nvme connect --transport tcp --traddr 10.0.0.1 "),
        "{connect}"
    );
    assert!(
        connect.contains(SECRET) && connect.contains("--ctrl-loss-tmo 5"),
        "{connect}"
    );
    let expected = json!({
        "trtype": "tcp",
        "traddr": "10.0.0.1",
        "trsvcid": "4420",
        "subnqn": "nqn.2025-01.io.example:lease",
        "nsid": 1,
        "hostnqn": HOST,
        "hostid": "07070707-0707-0707-0707-070707070707",
        "dhchap_secret": SECRET,
        "dhchap_ctrl_secret": CTRL_SECRET,
        "ctrl_loss_tmo": 5,
        "block_size": 4_096,
        "paths": [
            { "trtype": "tcp", "traddr": "10.0.0.1", "trsvcid": "4420" },
            { "trtype": "rdma", "traddr": "2001:db8::7", "trsvcid": "4421" },
        ],
        "connect": connect,
    });
    assert_eq!(nvmeof, expected);
    assert_eq!(
        json["binding"]["limits"],
        json!({ "offset": 0, "length": 256 })
    );
    let effective = json!({
        "transport": "nvme-tcp", "rotate_on_renew": false, "read_only": true, "mutual_auth": true,
    });
    assert_eq!(json["effective"], effective);
}

#[test]
fn people_are_told_where_and_how_but_no_secret() {
    let node = saying(Ok(Reply::Lease(block_lease())));
    let text = text_of(&node, &format!("lease query {LEASE_TEXT}"));
    for part in [
        "tcp at 10.0.0.1:4420",
        "rdma at [2001:db8::7]:4421",
        "nqn.2025-01.io.example:lease",
        HOST,
        &format!("fabricctl block attach {LEASE_TEXT}"),
        "--json",
        "256 blocks",
        "read-only, mutual authentication",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("DHHC-1"), "{text}");
}

#[test]
fn a_wrong_name_is_one_line() {
    let node = FakeNode::start(granting());
    let (status, line) = line_of(
        &node,
        "lease alloc block --bytes 1 --secs 1 --hostnqn /dev/null",
    );
    assert_eq!(status, 2);
    assert!(
        line.contains("fabricctl lease alloc block --help"),
        "{line}"
    );
}
