//! What a verified certificate says; a certificate with unexpected content is refused.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_wire::{NodeId, Role, is_tenant_name};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::{prelude::*, x509::AttributeTypeAndValue};

use crate::{BadCertificate, FabricId, Label};

/// A caller, as the lease table knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The tenant: name and CA, see [`crate::tenant_key`].
    pub tenant: Arc<str>,
    /// The role.
    pub role: Role,
}

/// A caller, and its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The caller.
    pub principal: Principal,
    /// SHA-256 of the SubjectPublicKeyInfo of the certificate: a node's id.
    pub key: NodeId,
    /// The labels that the CA has signed for a node; others have none.
    pub labels: Vec<Label>,
    /// The fabric whose CA has signed the certificate.
    pub fabric: FabricId,
    /// End of the certificate. Requests are refused after it, also on an open connection.
    pub not_after: SystemTime,
}

/// The subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Subject CN: the name of a tenant or operator, or of a kind of member.
    pub name: String,
    /// The role, from the O of the subject.
    pub role: Role,
    /// End of the certificate.
    pub not_after: SystemTime,
}

impl Subject {
    /// Reads a certificate whose chain, dates and use are verified already.
    ///
    /// # Errors
    /// If the certificate names nobody.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, BadCertificate> {
        let parsed = parse(certificate)?;
        let subject = parsed.subject();
        let name = only("CN", subject.iter_common_name())?;
        let role = role(only("O", subject.iter_organization())?)?;
        if !is_tenant_name(name) {
            return Err(BadCertificate::NotATenant(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            role,
            not_after: end_of(&parsed),
        })
    }
}

/// Subject O of the certificates of a role.
pub(crate) fn organization(role: Role) -> &'static str {
    match role {
        Role::Tenant => "fabricbios-tenant",
        Role::Operator => "fabricbios-operator",
        Role::Node => "fabricbios-node",
        Role::Scheduler => "fabricbios-scheduler",
    }
}

fn role(found: &str) -> Result<Role, BadCertificate> {
    let all = [Role::Tenant, Role::Operator, Role::Node, Role::Scheduler];
    let role = all.into_iter().find(|role| organization(*role) == found);
    role.ok_or_else(|| BadCertificate::NotARole(found.to_owned()))
}

/// Refuses a second name, which would be ambiguous.
fn only<'a>(
    what: &'static str,
    mut values: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>,
) -> Result<&'a str, BadCertificate> {
    match (values.next(), values.next()) {
        (Some(one), None) => one
            .as_str()
            .map_err(|error| BadCertificate::Unreadable(format!("{what}: {error}"))),
        _ => Err(BadCertificate::NotOnce(what)),
    }
}

/// The end of the validity of a certificate.
pub(crate) fn not_after(certificate: &CertificateDer<'_>) -> Result<SystemTime, BadCertificate> {
    parse(certificate).map(|parsed| end_of(&parsed))
}

/// Subject CN.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Result<String, BadCertificate> {
    let parsed = parse(certificate)?;
    only("CN", parsed.subject().iter_common_name()).map(str::to_owned)
}

/// SubjectPublicKeyInfo, DER.
pub(crate) fn public_key_info(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, BadCertificate> {
    parse(certificate).map(|parsed| parsed.public_key().raw.to_vec())
}

/// The key of the SubjectPublicKeyInfo, without its algorithm.
pub(crate) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, BadCertificate> {
    parse(certificate).map(|parsed| parsed.public_key().subject_public_key.data.to_vec())
}

/// The id of the node with this SubjectPublicKeyInfo.
pub(crate) fn node_id(public_key_info: &[u8]) -> NodeId {
    NodeId(Sha256::digest(public_key_info).into())
}

/// The labels that the CA has signed for a node.
pub(crate) fn labels(certificate: &CertificateDer<'_>) -> Result<Vec<Label>, BadCertificate> {
    let parsed = parse(certificate)?;
    let names = parsed.subject_alternative_name();
    let names = names.map_err(|error| BadCertificate::Unreadable(error.to_string()))?;
    let names = names.into_iter().flat_map(|it| &it.value.general_names);
    let uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(Label::URI_SCHEME),
        _ => None,
    });
    uris.map(|text| Ok(text.parse()?)).collect()
}

/// What the certificate lacks of that of a CA (RFC 5280 sections 4.2.1.9 and 4.2.1.3).
pub(crate) fn lacks_of_ca(
    certificate: &CertificateDer<'_>,
) -> Result<Option<&'static str>, BadCertificate> {
    let parsed = parse(certificate)?;
    let usage = parsed.key_usage();
    let usage = usage.map_err(|error| BadCertificate::Unreadable(error.to_string()))?;
    let signs = usage.is_some_and(|it| it.value.key_cert_sign());
    Ok(match (parsed.is_ca(), signs) {
        (false, _) => Some("basicConstraints with CA=true"),
        (true, false) => Some("keyUsage with keyCertSign"),
        (true, true) => None,
    })
}

/// Whether the CA's key has signed the certificate.
pub(crate) fn is_signed_by(
    certificate: &CertificateDer<'_>,
    ca: &CertificateDer<'_>,
) -> Result<bool, BadCertificate> {
    let (certificate, ca) = (parse(certificate)?, parse(ca)?);
    let is_signed = certificate.verify_signature(Some(ca.public_key()));
    Ok(is_signed.is_ok())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, BadCertificate> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(BadCertificate::Trailing),
        Err(error) => Err(BadCertificate::Unreadable(error.to_string())),
    }
}

fn end_of(parsed: &X509Certificate<'_>) -> SystemTime {
    let secs = parsed.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(secs).unwrap_or(0))
}
