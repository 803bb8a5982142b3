//! TLS of a port whose clients may be of no fabric: certificate, key, and the CA of the clients, each in a file of its own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustls::{
    RootCertStore, ServerConfig, pki_types::CertificateDer, server::WebPkiClientVerifier,
};

use crate::{
    FileProblem, IdentityError,
    file::read_text,
    node::{damaged, io_error},
    pem, private, subject,
};

/// The files, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the port, and its chain behind it.
    pub certificate: PathBuf,
    /// The key of the certificate; no other user can read it.
    pub key: PathBuf,
    /// The CA, or several, of which each client has a certificate.
    pub client_ca: PathBuf,
}

/// What the files say.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// TLS 1.3 only, and only clients with a certificate of the CA.
    pub config: Arc<ServerConfig>,
    /// Chain and CAs, which tell whether the files are others than before.
    pub certificates: Vec<CertificateDer<'static>>,
}

const CERTIFICATE: &str = "put the certificate of the port there, PEM, and its chain behind it";
const KEY: &str = "put the key of the port's certificate there, PEM, without a passphrase";
const CLIENT_CA: &str = "put the CA there, PEM, whose certificates clients have";

impl TlsFiles {
    /// Reads the files and checks them against each other.
    ///
    /// # Errors
    /// A file cannot be read or is damaged, another user can read the key, key and certificate do not belong together, or
    /// the certificate or a CA has expired.
    pub fn read(&self, now: SystemTime) -> Result<ServerTls, IdentityError> {
        let chain = certificates(&self.certificate, CERTIFICATE)?;
        let cas = certificates(&self.client_ca, CLIENT_CA)?;
        let bad_key = damaged(&self.key, KEY);
        let key = pem::private_key(private::read_key(&self.key)?.as_bytes()).map_err(&bad_key)?;
        let bad_ca = damaged(&self.client_ca, CLIENT_CA);
        let bad = damaged(&self.certificate, CERTIFICATE);
        chain
            .iter()
            .try_for_each(|it| is_valid(it, now))
            .map_err(bad)?;
        let mut roots = RootCertStore::empty();
        for ca in &cas {
            is_valid(ca, now).map_err(&bad_ca)?;
            roots
                .add(ca.clone())
                .map_err(|error| bad_ca(error.into()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build()
                .map_err(|error| bad_ca(FileProblem::NotAccepted(error.to_string())))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map(|it| it.with_client_cert_verifier(verifier))
            .and_then(|it| it.with_single_cert(chain.clone(), key.clone_key()))
            .map_err(|error| bad_key(problem(error)))?;
        Ok(ServerTls {
            config: Arc::new(config),
            certificates: [chain, cas].concat(),
        })
    }
}

fn certificates(
    path: &Path,
    remedy: &'static str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = read_text(path).map_err(io_error("read", path))?;
    match pem::certificates(text.as_bytes()) {
        Ok(all) if all.is_empty() => Err(damaged(path, remedy)(FileProblem::NoCertificate)),
        all => all.map_err(damaged(path, remedy)),
    }
}

fn is_valid(certificate: &CertificateDer<'_>, now: SystemTime) -> Result<(), FileProblem> {
    match subject::not_after(certificate)? > now {
        true => Ok(()),
        false => Err(FileProblem::Expired),
    }
}

fn problem(error: rustls::Error) -> FileProblem {
    match error {
        rustls::Error::InconsistentKeys(_) => FileProblem::OtherKey,
        other => FileProblem::Tls(other),
    }
}
