//! TLS 1.3 configurations from PEM texts.

use std::{sync::Arc, time::Duration};

use fabricbios_wire::ALPN;
use quinn::{
    ConnectionId, ConnectionIdGenerator, EndpointConfig, crypto::rustls::QuicServerConfig,
};
use rcgen::KeyPair;
use ring::hmac;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use zeroize::Zeroize;

use crate::{Ca, NodeKeys};

/// The certificate of an identity, the certificate of its CA, and the key.
type Parts = (
    CertificateDer<'static>,
    CertificateDer<'static>,
    PrivateKeyDer<'static>,
);

/// The certificate that comes first in a PEM text.
pub(crate) fn first_certificate(pem: &[u8]) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem).map_err(|e| format!("its certificate: {}", plain(&e)))
}

/// The private key of a PEM text.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|e| format!("its private key: {}", plain(&e)))
}

/// The private key of a PEM text, in the form for signing.
pub(crate) fn key_pair(pem: &str) -> Result<KeyPair, String> {
    let mut der = private_key(pem.as_bytes())?;
    let key = KeyPair::try_from(&der).map_err(|e| format!("its private key: {e}"));
    der.zeroize();
    key
}

/// The error in plain words: the text of the library shows lines of the file as lists of numbers.
fn plain(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let marker = String::from_utf8_lossy(end_marker);
            format!("the file is cut short: no line \"-----END {marker}-----\" follows")
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins with -----BEGIN is damaged".into()
        }
        pem::Error::NoItemsFound => "there is none in the file".into(),
        other => other.to_string(),
    }
}

/// The first certificate of a PEM text, as text.
pub(crate) fn first_certificate_block(pem: &str) -> Result<&str, String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let start = pem
        .find("-----BEGIN CERTIFICATE-----")
        .ok_or("it holds no certificate")?;
    let length = pem[start..]
        .find(END)
        .ok_or("its certificate is cut short")?;
    Ok(&pem[start..start + length + END.len()])
}

/// Certificate and key of an identity file, which must be of this CA.
pub(crate) fn identity(
    pem: &[u8],
    ca: &CertificateDer<'_>,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), String> {
    let (certificate, signer, key) = parts(pem)?;
    match signer == *ca {
        true => Ok((certificate, key)),
        false => Err("it belongs to another fabric".into()),
    }
}

/// Reads an identity file: certificate, certificate of its CA, and key.
pub(crate) fn parts(pem: &[u8]) -> Result<Parts, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("its certificates: {}", plain(&e)))?;
    let key = private_key(pem)?;
    match <[_; 2]>::try_from(certificates) {
        Ok([certificate, signer]) => Ok((certificate, signer, key)),
        Err(found) => Err(format!("it holds {} certificates; expected 2", found.len())),
    }
}

/// Checks that TLS accepts key and certificate, and that they belong together.
pub(crate) fn check_server_keys(node: &NodeKeys) -> Result<(), String> {
    let builder = builder()?.with_no_client_auth();
    let chain = vec![node.certificate.clone()];
    builder
        .with_single_cert(chain, node.key.clone_key())
        .map(drop)
        .map_err(|e| e.to_string())
}

/// TLS 1.3 only, clients of this fabric only, and no resumption: each connection proves its certificate, and a request
/// cannot be replayed.
pub(crate) fn server_config(node: &NodeKeys, ca: &Ca) -> Result<QuicServerConfig, String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(ca.certificate().clone())
        .map_err(|e| e.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| e.to_string())?;
    let chain = vec![node.certificate.clone()];
    let mut config = builder()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, node.key.clone_key())
        .map_err(|e| e.to_string())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    QuicServerConfig::try_from(config).map_err(|e| e.to_string())
}

/// A stateless reset key that stays the same across restarts: a restarted node resets the old connections of its
/// clients at once (RFC 9000 §10.3).
pub(crate) fn endpoint_config(node: &NodeKeys) -> EndpointConfig {
    let root = hmac::Key::new(hmac::HMAC_SHA256, node.key.secret_der());
    let reset = hmac::sign(&root, b"fabricbios stateless reset");
    let mut config =
        EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref())));
    config.cid_generator(|| Box::new(RandomIds));
    config
}

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

fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())
}
