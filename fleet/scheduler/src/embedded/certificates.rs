//! The certificates of an embedded etcd.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use zeroize::Zeroizing;

pub(super) const IDENTITY: &str = "etcd.identity";
pub(super) const CA: &str = "ca.pem";

/// Makes a CA, and one certificate for etcd and its client. The key of the CA is forgotten.
pub(super) fn make_identity(directory: &Path) -> anyhow::Result<()> {
    let mut of_ca = CertificateParams::default();
    of_ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    of_ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    of_ca
        .distinguished_name
        .push(DnType::CommonName, "fabricBIOS embedded etcd CA");
    let ca = CertifiedIssuer::self_signed(of_ca, KeyPair::generate()?)?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params
        .distinguished_name
        .push(DnType::CommonName, "fabricBIOS embedded etcd");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?;
    let key = Zeroizing::new(key.serialize_pem());
    let ca = ca.pem();
    write_private(&directory.join(CA), &[&ca])?;
    write_private(&directory.join(IDENTITY), &[&certificate.pem(), &key, &ca])?;
    Ok(())
}

fn write_private(path: &Path, parts: &[&str]) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    parts
        .iter()
        .try_for_each(|part| file.write_all(part.as_bytes()))
}
