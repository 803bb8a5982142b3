//! TLS of a port whose clients may be of no fabric. One file has all of it, so that a renewal replaces it at once.

use std::{path::Path, sync::Arc, time::SystemTime};

use rustls::{
    RootCertStore, ServerConfig, pki_types::CertificateDer, server::WebPkiClientVerifier,
};

use crate::{FileProblem, IdentityError, node::damaged, pem, private, subject};

/// How a port proves who it is, and whom it takes.
#[derive(Clone, Debug)]
pub struct PortTls {
    /// TLS 1.3 only, and only clients with a certificate of the CA.
    pub config: Arc<ServerConfig>,
    /// The certificates of the file, which tell whether it is another one than before.
    pub certificates: Vec<CertificateDer<'static>>,
}

const REMEDY: &str = "the file must have, as PEM, the port's certificate with its chain, its key without a passphrase, and last \
     the certificate of the CA of its clients";

impl PortTls {
    /// Reads the file: certificate and chain, key, and last the CA of the clients.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, another user can read it, key and certificate do not belong together, or a
    /// certificate has expired.
    pub fn read(path: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        let text = private::read_key(path)?;
        Self::of(text.as_bytes(), now).map_err(damaged(path, REMEDY))
    }

    fn of(pem: &[u8], now: SystemTime) -> Result<Self, FileProblem> {
        let certificates = pem::certificates(pem)?;
        let (ca, chain) = match certificates.split_last() {
            Some((ca, chain)) if !chain.is_empty() => (ca, chain),
            _ => return Err(FileProblem::Certificates(certificates.len())),
        };
        for certificate in &certificates {
            if subject::not_after(certificate)? <= now {
                return Err(FileProblem::Expired);
            }
        }
        if let Some(lack) = subject::lacks_of_ca(ca)? {
            return Err(FileProblem::LastNotACa(lack));
        }
        let key = pem::private_key(pem)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build()
                .map_err(|error| FileProblem::NotAccepted(error.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.to_vec(), key.clone_key())
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => FileProblem::OtherKey,
                other => FileProblem::Tls(other),
            })?;
        Ok(Self {
            config: Arc::new(config),
            certificates,
        })
    }
}
