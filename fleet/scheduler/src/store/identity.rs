//! How a scheduler proves to etcd who it is: its certificate, its key, and the certificate of etcd's CA, in one file.

use std::{error::Error, path::Path};

use anyhow::{Context, bail, ensure};
use fabricbios_fabric::read_key;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use zeroize::Zeroizing;

use super::client::DEADLINE;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Reads the identity and makes an endpoint of each address.
///
/// # Errors
/// The file cannot be used or others can read it, or an address is no `https://HOST:PORT`.
pub(super) fn endpoints(urls: &[String], identity: &Path) -> anyhow::Result<Vec<Endpoint>> {
    let tls = tls(identity).with_context(|| {
        let path = identity.display();
        format!(
            "--etcd-identity {path}: the file must have, as PEM, a certificate for etcd, its key, and last the certificate of \
            etcd's CA"
        )
    })?;
    let endpoint = |url: &String| {
        ensure!(
            url.starts_with("https://"),
            "--etcd {url}: not https://HOST:PORT; etcd says who belongs to the fabric, and must be the one that is meant"
        );
        let endpoint = Endpoint::from_shared(url.clone())
            .and_then(|it| it.tls_config(tls.clone()))
            .map_err(|error| anyhow::anyhow!(chain(&error.to_string(), error.source())));
        let endpoint = endpoint.with_context(|| format!("--etcd {url}"))?;
        let endpoint = endpoint.connect_timeout(DEADLINE).tcp_nodelay(true);
        Ok(endpoint)
    };
    urls.iter().map(endpoint).collect()
}

fn tls(path: &Path) -> anyhow::Result<ClientTlsConfig> {
    let pem = read_key(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let certificates = certificates.context("the certificates")?.len();
    ensure!(
        certificates >= 2,
        "it has {certificates} certificates, and at least 2 are needed"
    );
    // Wiped: this only checks it.
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map(Zeroizing::new);
    drop(key.context("the private key")?);
    let Some((own, ca)) = last_certificate(&pem) else {
        bail!("its last certificate is cut short");
    };
    Ok(ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .identity(Identity::from_pem(own, pem.as_bytes())))
}

/// What comes before the last certificate, and that certificate.
fn last_certificate(pem: &str) -> Option<(&str, &str)> {
    let at = pem.rfind(BEGIN)?;
    let end = pem[at..].find(END)? + END.len();
    Some((&pem[..at], &pem[at..at + end]))
}

/// An error with its causes: those of the libraries here do not print theirs.
pub(super) fn chain(text: &str, mut source: Option<&(dyn Error + 'static)>) -> String {
    let mut text = text.to_owned();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
