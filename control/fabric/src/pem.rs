//! Reads certificates and keys from PEM texts (RFC 7468).

use rcgen::KeyPair;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};
use zeroize::Zeroizing;

use crate::{FileProblem, ca::SecretKey};

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

pub(crate) fn plain(error: &pem::Error) -> String {
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

/// All certificates of a PEM text, in their order.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>();
    all.map_err(bad_pem("certificates"))
}

/// A certificate as PEM.
pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    ::pem::encode_config(
        &::pem::Pem::new("CERTIFICATE", certificate.as_ref()),
        config,
    )
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
    let key = private_key(pem)?;
    match <[_; 2]>::try_from(certificates(pem)?) {
        Ok([certificate, signer]) => Ok((certificate, signer, key)),
        Err(found) => Err(FileProblem::Certificates(found.len())),
    }
}
