//! Which node answers: ids that the caller names, other nodes of the same fabric, and the CA that the client trusts.

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use fabricbios_client::{Error, MemBuilder, Node, NodeId};
use fabricbios_wire::{ALPN, Request};
use quinn::{Endpoint, ServerConfig, crypto::rustls::QuicServerConfig};
use rcgen::PublicKeyData;
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};

use crate::{
    admin, builder,
    common::{FakeNode, LEASE, fleet::Fleet},
    obliging,
};

const QUERY: Request = Request::LeaseQuery(LEASE);
const PING: Request = Request::Ping(7);

/// Why the node is not trusted.
fn distrust(error: Error) -> String {
    assert_eq!(error.code(), "UntrustedNode", "{error}");
    error.to_string()
}

#[test]
fn another_node_of_the_fabric_at_the_address_is_asked_nothing() {
    let mut node = FakeNode::start(obliging());
    let (addr, first) = (node.addr(), node.id());
    let client = Node::connect(&addr, &admin(&node)).unwrap();
    assert_eq!(client.id(), Some(first));
    client.call(QUERY).unwrap();

    node.crash();
    let error = client.call(QUERY).unwrap_err();
    assert_eq!(error.code(), "Unreachable", "{error}");
    node.serve_as_another();
    let second = node.id();
    assert_ne!(first, second);
    let patient = client.patient(Duration::from_secs(60));
    for handle in [&client, &patient] {
        let why = distrust(handle.call(QUERY).unwrap_err());
        for part in [&addr, &first.to_string(), &second.to_string()] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(why.contains("has answered before") && why.contains("connect anew"));
    }
    assert_eq!(node.asked().len(), 1);
    let anew = Node::connect(&addr, &admin(&node)).unwrap();
    assert_eq!((anew.id(), client.id()), (Some(second), Some(first)));

    node.crash();
    node.serve_as_itself();
    client.call(QUERY).unwrap();
    assert_eq!((client.id(), node.asked().len()), (Some(first), 2));
}

#[test]
fn a_scheduler_may_answer_where_another_one_has_answered_and_no_other_member_may() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let mut scheduler = fleet.redirecting_to(&[&node]);
    let (addr, first) = (scheduler.addr(), scheduler.id());
    let client = Node::connect(&addr, &admin(&scheduler)).unwrap();
    let named = Node::connect_to(&addr, &admin(&scheduler), Some(first), Duration::ZERO).unwrap();
    client.call(PING).unwrap();

    scheduler.crash();
    for handle in [&client, &named] {
        let error = handle.call(PING).unwrap_err();
        assert_eq!(error.code(), "Unreachable", "{error}");
    }
    scheduler.serve_with(fleet.further_scheduler("second"));
    client.call(PING).unwrap();
    assert_eq!(client.id(), Some(scheduler.id()));
    assert_ne!(client.id(), Some(first));
    distrust(named.call(PING).unwrap_err());

    scheduler.crash();
    client.call(PING).unwrap_err();
    let state = tempfile::tempdir().unwrap();
    scheduler.serve_with(fleet.node_identity(state.path()));
    distrust(client.call(PING).unwrap_err());

    // Nor may a scheduler answer where a node has.
    let mut second = fleet.node(obliging());
    let client = Node::connect(&second.addr(), &admin(&second)).unwrap();
    second.crash();
    client.call(PING).unwrap_err();
    second.serve_with(fleet.further_scheduler("third"));
    distrust(client.call(PING).unwrap_err());
}

#[test]
fn a_lease_is_not_looked_for_on_another_node() {
    let mut node = FakeNode::start(obliging());
    let lease = builder(&node).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(node.id()));
    node.crash();
    lease.set_patience(Duration::ZERO);
    lease.query().unwrap_err();
    node.serve_as_another();
    for error in [lease.query().unwrap_err(), lease.renew().unwrap_err()] {
        distrust(error);
    }
    assert_eq!(node.asked().len(), 1);
    node.crash();
    node.serve_as_itself();
    lease.renew().unwrap();
}

#[test]
fn a_node_with_another_id_than_the_named_one_is_asked_nothing() {
    let (node, foreign) = (FakeNode::start(obliging()), FakeNode::start(obliging()));
    let (addr, identity) = (node.addr(), admin(&node));
    let connect = |named| Node::connect_to(&addr, &identity, Some(named), Duration::ZERO);
    let (right, wrong) = (node.id(), NodeId([7; 32]));
    let client = connect(right).unwrap();
    assert_eq!(client.id(), Some(right));
    client.call(QUERY).unwrap();

    let lease = || MemBuilder::new().bytes(4096).auto_renew(false);
    let at_address = || lease().node(&*addr).identity(&identity);
    for error in [
        connect(wrong).unwrap_err(),
        at_address().node_id(wrong).acquire().unwrap_err(),
        lease().on(&client).node_id(wrong).acquire().unwrap_err(),
    ] {
        let why = distrust(error);
        for part in [&addr, &wrong.to_string(), &right.to_string()] {
            assert!(why.contains(part), "{part} in {why}");
        }
        assert!(why.contains("which was asked for"), "{why}");
    }
    // The id does not replace the CA.
    let why = Node::connect_to(&addr, &admin(&foreign), Some(right), Duration::ZERO);
    assert!(distrust(why.unwrap_err()).contains("not a node of this identity's fabric"));
    assert_eq!(node.asked().len(), 1);

    at_address().node_id(right).acquire().unwrap();
    lease().on(&client).node_id(right).acquire().unwrap();
}

/// Notes the CAs that clients name.
#[derive(Debug)]
struct Noting {
    key: Arc<CertifiedKey>,
    authorities: Mutex<Vec<Vec<u8>>>,
}

impl ResolvesServerCert for Noting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = hello.certificate_authorities().unwrap_or_default();
        let named = named.iter().map(|name| name.as_ref().to_vec());
        self.authorities.lock().unwrap().extend(named);
        Some(Arc::clone(&self.key))
    }
}

#[test]
fn a_node_is_told_which_ca_the_client_trusts() {
    let node = FakeNode::start(obliging());
    let pem = fs::read(node.dir().join("node.identity")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(&pem).unwrap();
    let noting = Arc::new(Noting {
        key: Arc::new(CertifiedKey::new(
            vec![CertificateDer::from_pem_slice(&pem).unwrap()],
            rustls::crypto::ring::sign::any_supported_type(&key).unwrap(),
        )),
        authorities: Mutex::default(),
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&noting) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![ALPN.to_vec()];
    let config = QuicServerConfig::try_from(config).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (addr, accepting) = {
        let _guard = runtime.enter();
        let config = ServerConfig::with_crypto(Arc::new(config));
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Endpoint::server(config, at).unwrap();
        let addr = server.local_addr().unwrap();
        let accepting = async move { server.accept().await.unwrap().await.unwrap() };
        (addr, runtime.spawn(accepting))
    };
    let client = Node::connect(&addr.to_string(), &admin(&node)).unwrap();
    runtime.block_on(accepting).unwrap();
    assert_eq!(client.id(), Some(node.id()));
    let ca = node.issuer();
    let (_, ca) = x509_parser::parse_x509_certificate(ca.certificate()).unwrap();
    let told = noting.authorities.lock().unwrap();
    assert_eq!(*told, [ca.subject().as_raw()]);
}

#[test]
fn the_fingerprint_of_a_fabric_is_that_of_the_key_of_its_ca() {
    let (node, other) = (FakeNode::start(obliging()), FakeNode::start(obliging()));
    let pem = fs::read_to_string(node.dir().join("ca-key.pem")).unwrap();
    let key = rcgen::KeyPair::from_pem(&pem).unwrap();
    let digest = Sha256::digest(key.subject_public_key_info());
    let digits: String = digest[..16].iter().map(|it| format!("{it:02x}")).collect();
    assert_eq!(admin(&node).fabric().unwrap(), digits);
    assert_ne!(admin(&other).fabric().unwrap(), digits);
}
