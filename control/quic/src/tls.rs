//! TLS 1.3 of the server.

use std::{error::Error, sync::Arc, time::Duration};

use fabricbios_fabric::Fabric;
use fabricbios_wire::ALPN;
use quinn::{
    ConnectionId, ConnectionIdGenerator, EndpointConfig, crypto::rustls::QuicServerConfig,
};
use ring::hmac;
use rustls::{
    DistinguishedName, RootCertStore, ServerConfig,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
};

/// TLS 1.3 only, clients of the node's fabrics only, and no resumption: each connection proves its certificate, and a
/// request cannot be replayed.
pub(crate) fn server_config(
    fabric: &Fabric,
) -> Result<QuicServerConfig, Box<dyn Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let mut certificates = Vec::new();
    for it in fabric.certified() {
        roots.add(it.ca.clone())?;
        let chain = vec![it.certificate.clone()];
        let certified = CertifiedKey::from_der(chain, fabric.key().der().clone_key(), &provider)?;
        certificates.push((it.ca_name()?, Arc::new(certified)));
    }
    let roots = Arc::new(roots);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(Certificates(certificates)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(QuicServerConfig::try_from(config)?)
}

/// The node's certificates, each with the name of its CA: that of the present fabric first.
#[derive(Debug)]
struct Certificates(Vec<(DistinguishedName, Arc<CertifiedKey>)>);

impl ResolvesServerCert for Certificates {
    /// A client that names the CAs it trusts (RFC 8446 §4.2.4) gets a certificate of one of them.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let trusted = hello.certificate_authorities().unwrap_or_default();
        let is_trusted =
            |ca: &DistinguishedName| trusted.iter().any(|it| it.as_ref() == ca.as_ref());
        let of_trusted = self.0.iter().find(|(ca, _)| is_trusted(ca));
        let (_, certified) = of_trusted.or(self.0.first())?;
        Some(Arc::clone(certified))
    }
}

/// A stateless reset key that stays the same across restarts: a restarted node resets the old connections of its
/// clients at once (RFC 9000 §10.3).
pub(crate) fn endpoint_config(fabric: &Fabric) -> EndpointConfig {
    let root = hmac::Key::new(hmac::HMAC_SHA256, fabric.key().der().secret_der());
    let reset = hmac::sign(&root, b"fabricbios stateless reset");
    let mut config =
        EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref())));
    config
        .cid_generator(|| Box::new(RandomIds))
        .min_reset_interval(RESET_INTERVAL);
    config
}

/// A scheduler that has been restarted has thousands of connections to reset. A reset is shorter than the packet before it,
/// and costs less than the answer to a first packet of a connection.
const RESET_INTERVAL: Duration = Duration::from_micros(100);

/// Random connection ids. The default generator of quinn would refuse the ids of an earlier process.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; CONNECTION_ID_BYTES];
        getrandom::fill(&mut id).expect("the kernel gave randomness for this endpoint's keys");
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

const CONNECTION_ID_BYTES: usize = 8;
