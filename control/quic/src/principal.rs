//! The principal of a peer, from its verified certificate; a certificate with unexpected content is refused.

use std::time::{Duration, SystemTime};

use fabricbios_wire::{Role, is_tenant_name};
use rustls::pki_types::CertificateDer;
use x509_parser::{prelude::*, x509::AttributeTypeAndValue};

use crate::BadCertificate;

/// The identity and role of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Subject CN of the certificate.
    pub tenant: String,
    /// The role, from the O of the subject.
    pub role: Role,
}

/// A principal and the end of its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The principal.
    pub principal: Principal,
    /// End of the certificate. Requests are refused after it, also on an open connection.
    pub not_after: SystemTime,
}

impl Peer {
    /// Reads a certificate whose chain, dates and use are verified already.
    ///
    /// # Errors
    /// If the certificate names no principal.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, BadCertificate> {
        let parsed = parse(certificate)?;
        let subject = parsed.subject();
        let tenant = only("CN", subject.iter_common_name())?;
        let role = role(only("O", subject.iter_organization())?)?;
        if !is_tenant_name(tenant) {
            return Err(BadCertificate::NotATenant(tenant.to_owned()));
        }
        let principal = Principal {
            tenant: tenant.to_owned(),
            role,
        };
        Ok(Self {
            principal,
            not_after: end_of(&parsed),
        })
    }
}

/// Subject O of a node's certificate.
pub(crate) const NODE_ORGANIZATION: &str = "fabricbios-node";

/// Whether the certificate is that of a node.
pub(crate) fn is_node(certificate: &CertificateDer<'_>) -> Result<bool, BadCertificate> {
    let parsed = parse(certificate)?;
    let organization = only("O", parsed.subject().iter_organization())?;
    Ok(organization == NODE_ORGANIZATION)
}

/// Subject O of the certificates of a role.
pub(crate) fn organization(role: Role) -> &'static str {
    match role {
        Role::Tenant => "fabricbios-tenant",
        Role::Operator => "fabricbios-operator",
    }
}

fn role(organization: &str) -> Result<Role, BadCertificate> {
    match organization {
        "fabricbios-tenant" => Ok(Role::Tenant),
        "fabricbios-operator" => Ok(Role::Operator),
        other => Err(BadCertificate::NotARole(other.to_owned())),
    }
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

/// SubjectPublicKeyInfo, DER.
pub(crate) fn public_key_info(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, BadCertificate> {
    parse(certificate).map(|parsed| parsed.public_key().raw.to_vec())
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
