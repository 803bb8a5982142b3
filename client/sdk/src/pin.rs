//! The node that may answer: the CA of the fabric says that a node answers, and the node id says which.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fabricbios_wire::NodeId;
use quinn::Connection;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};

/// Subject O of the certificates of schedulers.
const SCHEDULER: &str = "fabricbios-scheduler";

/// The node of one link: the one that the caller named, else the first one that answered. A scheduler holds no lease, so
/// another scheduler of the fabric may answer in its place.
#[derive(Debug, Default)]
pub(crate) struct Pin {
    named: Option<NodeId>,
    answered: Mutex<Option<NodeId>>,
    /// The scheduler that announces itself where the link dials now.
    announced: Mutex<Option<NodeId>>,
    /// Whether the certificate of the last completed handshake is one of a scheduler.
    scheduler: AtomicBool,
    /// The node that the last handshake refused.
    refused: Mutex<Option<NodeId>>,
}

impl Pin {
    pub(crate) fn new(named: Option<NodeId>) -> Self {
        Self {
            named,
            ..Self::default()
        }
    }

    /// The node that the caller named.
    #[cfg(feature = "discover")]
    pub(crate) fn named(&self) -> Option<NodeId> {
        self.named
    }

    /// Only this scheduler is allowed to answer the next handshake.
    #[cfg(feature = "discover")]
    pub(crate) fn expect_announced(&self, id: NodeId) {
        *lock(&self.announced) = Some(id);
        *lock(&self.refused) = None;
    }

    /// The node of the first completed handshake; of schedulers, that of the last one.
    pub(crate) fn answered(&self) -> Option<NodeId> {
        *lock(&self.answered)
    }

    /// Whether a scheduler has completed the last handshake.
    pub(crate) fn is_scheduler(&self) -> bool {
        self.scheduler.load(Ordering::Relaxed)
    }

    /// Keeps the node of a completed handshake. `None`: the node has no certificate, which the verifier does not allow.
    pub(crate) fn keep(&self, connection: &Connection) -> Option<NodeId> {
        let identity = connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        let certificate = chain.first()?;
        let id = NodeId(key_digest(certificate)?);
        let is_scheduler = is_of_scheduler(certificate);
        self.scheduler.store(is_scheduler, Ordering::Relaxed);
        let mut answered = lock(&self.answered);
        if is_scheduler {
            *answered = Some(id);
        }
        Some(*answered.get_or_insert(id))
    }

    /// Why the handshake that has just failed refused another node; `None`: it failed for another reason.
    pub(crate) fn why_refused(&self, at: SocketAddr) -> Option<String> {
        let found = lock(&self.refused).take()?;
        let announced = *lock(&self.announced);
        Some(match (self.named, announced, self.answered()) {
            (Some(named), ..) => not_the_named(found, at, named),
            (None, Some(announced), _) => format!(
                "{found} answers at {at}, where scheduler {announced} announces itself; look at its --listen, and at that \
                 address"
            ),
            (None, None, Some(before)) if self.is_scheduler() => format!(
                "node {found} answers at {at}, where scheduler {before} has answered before; if this one is meant, connect anew"
            ),
            (None, None, before) => {
                let before = before?;
                format!(
                    "node {found} answers at {at}, where node {before} has answered before: the leases of that node are not on \
                     this one; if this one is meant, connect anew"
                )
            }
        })
    }

    fn allows(&self, id: NodeId, certificate: &CertificateDer<'_>) -> bool {
        let is_another_scheduler = || self.is_scheduler() && is_of_scheduler(certificate);
        let is_allowed = match (self.named, *lock(&self.announced), self.answered()) {
            (Some(expected), ..) | (None, Some(expected), _) => expected == id,
            (None, None, Some(before)) => before == id || is_another_scheduler(),
            (None, None, None) => true,
        };
        *lock(&self.refused) = (!is_allowed).then_some(id);
        is_allowed
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The problem of a node that is not the named one.
pub(crate) fn not_the_named(found: NodeId, at: impl std::fmt::Display, named: NodeId) -> String {
    format!(
        "node {found} answers at {at}, and not node {named}, which was asked for: the leases of that node are not on this one; \
         correct the address, or name the id of this node if it is meant"
    )
}

/// SHA-256 of the SubjectPublicKeyInfo (DER) of a certificate. `None`: it cannot be read.
pub(crate) fn key_digest(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(Sha256::digest(parsed.public_key().raw).into())
}

/// Whether the only O of the subject is that of schedulers.
fn is_of_scheduler(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return false;
    };
    let mut names = parsed.subject().iter_organization();
    let (first, second) = (names.next(), names.next());
    let first = first.and_then(|it| it.as_str().ok());
    first == Some(SCHEDULER) && second.is_none()
}

/// Accepts the certificates that [`WebPkiServerVerifier`] accepts, of the node that the pin allows.
#[derive(Debug)]
pub(crate) struct NodeVerifier {
    certificates: Arc<WebPkiServerVerifier>,
    /// The subjects of the trusted CAs, which a node with certificates of several CAs needs to know.
    authorities: Vec<DistinguishedName>,
    pin: Arc<Pin>,
}

impl NodeVerifier {
    pub(crate) fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
        pin: Arc<Pin>,
    ) -> Result<Self, VerifierBuilderError> {
        let authorities = roots.subjects();
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Self {
            certificates: builder.build()?,
            authorities,
            pin,
        })
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.certificates.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let digest = key_digest(end_entity).ok_or(CertificateError::BadEncoding)?;
        match self.pin.allows(NodeId(digest), end_entity) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.certificates.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.certificates.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.certificates.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        Some(&self.authorities)
    }
}
