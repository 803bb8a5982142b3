//! A certificate of a node with the certificate of the CA that has signed it.

use std::{fmt, str::FromStr, sync::Arc, time::SystemTime};

use fabricbios_wire::is_tenant_name;
use rustls::{
    DistinguishedName, RootCertStore,
    client::{VerifierBuilderError, WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::WebPkiClientVerifier,
};
use sha2::{Digest, Sha256};

use crate::{BadCertificate, FileProblem, NODE_DNS_NAME, subject};

/// The fingerprint of a fabric: the first 16 bytes of the SHA-256 of its CA's SubjectPublicKeyInfo (DER). A renewed
/// certificate of the CA has the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricId(pub [u8; 16]);

impl FabricId {
    /// The fabric of this CA.
    pub(crate) fn of_ca(ca: &CertificateDer<'_>) -> Result<Self, BadCertificate> {
        let digest = Sha256::digest(subject::public_key_info(ca)?);
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Ok(Self(id))
    }
}

impl fmt::Display for FabricId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base16ct::lower::encode_string(&self.0))
    }
}

impl fmt::Debug for FabricId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for FabricId {
    type Err = base16ct::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; 16];
        match base16ct::lower::decode(text, &mut id)?.len() {
            16 => Ok(Self(id)),
            _ => Err(base16ct::Error::InvalidLength),
        }
    }
}

/// How a node names a tenant: a tenant is a name in a fabric. `NAME` in the fabric of the node's first start, its
/// `home`; `NAME@FINGERPRINT` in another.
#[must_use]
pub fn tenant_key(name: &str, fabric: FabricId, home: FabricId) -> String {
    match fabric == home {
        true => name.to_owned(),
        false => format!("{name}@{fabric}"),
    }
}

/// Whether the text names a tenant as [`tenant_key`] does.
#[must_use]
pub fn is_tenant_key(text: &str) -> bool {
    let (name, fabric) = text
        .split_once('@')
        .map_or((text, None), |(n, f)| (n, Some(f)));
    is_tenant_name(name) && fabric.is_none_or(|it| it.parse::<FabricId>().is_ok())
}

/// A node's certificate and the certificate of its CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The node's certificate.
    pub certificate: CertificateDer<'static>,
    /// The CA's certificate.
    pub ca: CertificateDer<'static>,
    /// The fabric of that CA.
    pub fabric: FabricId,
}

impl Certified {
    pub(crate) fn new(
        certificate: CertificateDer<'static>,
        ca: CertificateDer<'static>,
    ) -> Result<Self, BadCertificate> {
        let fabric = FabricId::of_ca(&ca)?;
        Ok(Self {
            certificate,
            ca,
            fabric,
        })
    }

    /// The name of the CA, as TLS names it (RFC 8446 §4.2.4).
    ///
    /// # Errors
    /// If the certificate of the CA cannot be read.
    pub fn ca_name(&self) -> Result<DistinguishedName, rustls::Error> {
        let roots = roots(&self.ca)?;
        let mut names = roots.subjects();
        names.pop().ok_or(rustls::Error::NoCertificatesPresented)
    }

    /// Checks that clients and schedulers of the fabric accept the certificate now: signature, dates, name and uses.
    pub(crate) fn verify(&self, now: SystemTime) -> Result<(), FileProblem> {
        let at = unix_time(now);
        let refused = |why: &dyn fmt::Display| FileProblem::NotAccepted(why.to_string());
        let name = ServerName::try_from(NODE_DNS_NAME).map_err(|why| refused(&why))?;
        let as_server = server_verifier(&self.ca)?;
        let accepted = as_server.verify_server_cert(&self.certificate, &[], &name, &[], at);
        accepted.map_err(|why| refused(&why))?;
        let all = Arc::new(roots(&self.ca)?);
        let as_client = WebPkiClientVerifier::builder_with_provider(all, provider());
        let as_client = as_client.build().map_err(|why| refused(&why))?;
        let accepted = as_client.verify_client_cert(&self.certificate, &[], at);
        accepted.map(drop).map_err(|why| refused(&why))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn unix_time(at: SystemTime) -> UnixTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// Verifies servers that this CA has signed.
pub(crate) fn server_verifier(
    ca: &CertificateDer<'static>,
) -> Result<Arc<WebPkiServerVerifier>, FileProblem> {
    let all = Arc::new(roots(ca)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(all, provider());
    let refused = |why: VerifierBuilderError| FileProblem::NotAccepted(why.to_string());
    verifier.build().map_err(refused)
}

fn roots(ca: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_of_another_fabric_has_another_key() {
        let (home, other) = (FabricId([1; 16]), FabricId([0xAB; 16]));
        assert_eq!(tenant_key("blue", home, home), "blue");
        let key = tenant_key("blue", other, home);
        assert_eq!(key, format!("blue@{}", "ab".repeat(16)));
        for text in ["blue", &key] {
            assert!(is_tenant_key(text), "{text}");
        }
        let short = &key[..key.len() - 2];
        let upper = key.to_uppercase().replace("BLUE", "blue");
        for text in [
            "",
            "@",
            "Blue",
            "blue@",
            "@ab",
            short,
            &upper,
            &format!("{key}0"),
        ] {
            assert!(!is_tenant_key(text), "{text}");
        }
    }
}
