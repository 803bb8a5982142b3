//! TLS 1.3 configurations from PEM texts.

use std::{error::Error, sync::Arc, time::Duration};

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
use zeroize::Zeroizing;

use crate::{Ca, FileProblem, NodeKeys, ca::SecretKey};

/// The certificate of an identity, the certificate of its CA, and the key.
type Parts = (
    CertificateDer<'static>,
    CertificateDer<'static>,
    Zeroizing<PrivateKeyDer<'static>>,
);

/// The certificate that comes first in a PEM text.
pub(crate) fn first_certificate(pem: &[u8]) -> Result<CertificateDer<'static>, FileProblem> {
    CertificateDer::from_pem_slice(pem).map_err(bad_pem("certificate"))
}

/// The private key of a PEM text.
pub(crate) fn private_key(pem: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, FileProblem> {
    let key = PrivateKeyDer::from_pem_slice(pem);
    key.map(Zeroizing::new).map_err(bad_pem("private key"))
}

/// The private key of a PEM text, in the form for signing.
pub(crate) fn key_pair(pem: &str) -> Result<SecretKey, FileProblem> {
    let key = KeyPair::try_from(&*private_key(pem.as_bytes())?);
    key.map(SecretKey).map_err(|error| FileProblem::Part {
        what: "private key",
        why: error.to_string(),
    })
}

/// The error in plain words: the text of the library shows lines of the file as lists of numbers.
fn bad_pem(what: &'static str) -> impl Fn(pem::Error) -> FileProblem {
    move |error| FileProblem::Part {
        what,
        why: plain(&error),
    }
}

fn plain(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            let marker = String::from_utf8_lossy(end_marker);
            format!("the file is cut short: no line \"-----END {marker}-----\" follows")
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins with -----BEGIN is damaged".into()
        }
        pem::Error::NoItemsFound => "the file has none".into(),
        other => other.to_string(),
    }
}

/// The first certificate of a PEM text, as text. `None`: the text has none.
pub(crate) fn first_certificate_block(pem: &str) -> Option<&str> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let block = &pem[pem.find("-----BEGIN CERTIFICATE-----")?..];
    Some(&block[..block.find(END)? + END.len()])
}

/// Certificate and key of an identity file, which must be of this CA.
pub(crate) fn identity(
    pem: &[u8],
    ca: &CertificateDer<'_>,
) -> Result<(CertificateDer<'static>, Zeroizing<PrivateKeyDer<'static>>), FileProblem> {
    let (certificate, signer, key) = parts(pem)?;
    match signer == *ca {
        true => Ok((certificate, key)),
        false => Err(FileProblem::OtherFabric),
    }
}

/// Reads an identity file: certificate, certificate of its CA, and key.
pub(crate) fn parts(pem: &[u8]) -> Result<Parts, FileProblem> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(bad_pem("certificates"))?;
    let key = private_key(pem)?;
    match <[_; 2]>::try_from(certificates) {
        Ok([certificate, signer]) => Ok((certificate, signer, key)),
        Err(found) => Err(FileProblem::Certificates(found.len())),
    }
}

/// Checks that TLS accepts key and certificate, and that they belong together.
pub(crate) fn check_server_keys(node: &NodeKeys) -> Result<(), rustls::Error> {
    let builder = builder()?.with_no_client_auth();
    let chain = vec![node.certificate.clone()];
    builder
        .with_single_cert(chain, node.key.clone_key())
        .map(drop)
}

/// TLS 1.3 only, clients of this fabric only, and no resumption: each connection proves its certificate, and a request
/// cannot be replayed.
pub(crate) fn server_config(
    node: &NodeKeys,
    ca: &Ca,
) -> Result<QuicServerConfig, Box<dyn Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    let chain = vec![node.certificate.clone()];
    let mut config = builder()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, node.key.clone_key())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(QuicServerConfig::try_from(config)?)
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

fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])
}
