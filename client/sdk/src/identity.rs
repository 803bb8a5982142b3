//! The identity of the caller: one PEM file with certificate, private key and the CA of the fabric.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use fabricbios_wire::ALPN;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    ENV_IDENTITY, Error,
    pin::{NodeVerifier, Pin, key_digest},
};

/// A loaded identity. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<Loaded>);

struct Loaded {
    path: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    ca: CertificateDer<'static>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("path", &self.0.path)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads an identity file, such as `STATE_DIR/admin.identity` of the daemon.
    ///
    /// # Errors
    /// If the file cannot be read, or is no identity.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let pem = fs::read(path)
            .map(Zeroizing::new)
            .map_err(|error| problem(path, read_error(&error)))?;
        let identity = Self(Arc::new(parse(path, &pem)?));
        identity.client_config(Arc::default())?;
        Ok(identity)
    }

    /// Reads the identity file that FABRICBIOS_IDENTITY names.
    ///
    /// # Errors
    /// If the variable is not set, or the file cannot be used.
    pub fn from_env() -> Result<Self, Error> {
        match std::env::var_os(ENV_IDENTITY) {
            Some(path) if !path.is_empty() => Self::load(PathBuf::from(path)),
            _ => Err(Error::Usage(format!(
                "no identity given: set {ENV_IDENTITY} to an identity file; the daemon wrote the \
                 first one to admin.identity in its state directory"
            ))),
        }
    }

    /// The end of the validity of the certificate, in seconds of Unix time.
    ///
    /// # Errors
    /// If the certificate cannot be read.
    pub fn expires_at_unix_secs(&self) -> Result<u64, Error> {
        let der = self.0.chain.first().map_or(&[][..], |it| it);
        let parsed = x509_parser::parse_x509_certificate(der);
        let (_, certificate) =
            parsed.map_err(|error| problem(self.path(), format!("the certificate: {error}")))?;
        let at = certificate.validity().not_after.timestamp();
        // Validity before 1970 is over.
        Ok(u64::try_from(at).unwrap_or_default())
    }

    /// The fingerprint of the fabric: the first 16 bytes of the SHA-256 of its CA's SubjectPublicKeyInfo (DER), as 32
    /// hexadecimal digits.
    ///
    /// # Errors
    /// If the CA certificate cannot be read.
    pub fn fabric(&self) -> Result<String, Error> {
        let digest = key_digest(&self.0.ca);
        let digest = digest.ok_or_else(|| problem(self.path(), "the CA certificate is damaged"))?;
        Ok(base16ct::lower::encode_string(&digest[..16]))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The certificate of the fabric's CA.
    #[cfg(feature = "discover")]
    pub(crate) fn ca(&self) -> &CertificateDer<'static> {
        &self.0.ca
    }

    /// TLS 1.3, this CA and the node of the pin only, no resumption.
    pub(crate) fn client_config(&self, pin: Arc<Pin>) -> Result<QuicClientConfig, Error> {
        let cannot =
            |what: &str, error: &dyn fmt::Display| problem(self.path(), format!("{what}: {error}"));
        let mut roots = RootCertStore::empty();
        roots
            .add(self.0.ca.clone())
            .map_err(|e| cannot("the CA certificate", &e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = NodeVerifier::new(roots, Arc::clone(&provider), pin)
            .map_err(|e| cannot("the CA certificate", &e))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| cannot("TLS", &e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.0.chain.clone(), self.0.key.clone_key())
            .map_err(|e| cannot("the key does not fit the certificate", &e))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        QuicClientConfig::try_from(config).map_err(|e| cannot("TLS", &e))
    }
}

fn problem(path: &Path, why: impl Into<String>) -> Error {
    Error::Identity {
        path: path.to_owned(),
        why: why.into(),
    }
}

/// The error, with a remedy.
fn read_error(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "; the daemon wrote the first identity to admin.identity in its state directory, and an operator \
             issues others; a node that has joined a fabric has none of its own"
        }
        io::ErrorKind::PermissionDenied => "; run this as the file's owner",
        _ => "",
    };
    format!("{error}{remedy}")
}

fn parse(path: &Path, pem: &[u8]) -> Result<Loaded, Error> {
    let bad = |what: &str| problem(path, format!("{what}; {CONTENTS}"));
    let mut chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(pem_error(&error)))?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| bad(pem_error(&error)))?;
    let ca = chain.pop().filter(|_| !chain.is_empty());
    Ok(Loaded {
        path: path.to_owned(),
        ca: ca.ok_or_else(|| bad("the file has no CA certificate"))?,
        chain,
        key,
    })
}

/// Replaces the messages of the parser, which print bytes as numbers.
fn pem_error(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "the file has no private key",
        _ => "the file is cut off or is not PEM",
    }
}

const CONTENTS: &str =
    "an identity file holds a certificate, its private key and the CA certificate, as PEM";
