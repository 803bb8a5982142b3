//! The certificate authority of the fabric: one ECDSA P-256 key.
//!
//! A signing request gives only its key. The authority sets names, roles and usages, so that no tenant can get the name
//! of the node or of another tenant.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use fabricbios_wire::{
    CSR_BYTES_MAX, IssueRequest, LeaseError, Refusal, RefusalClass, Reply, Role, is_tenant_name,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
    SigningKey, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};
use zeroize::{Zeroize, Zeroizing};

use crate::{BadCertificate, FileProblem, Label, Member, subject::organization};

/// The name in every node certificate; clients verify it, whatever the address is.
pub const NODE_DNS_NAME: &str = "node.fabricbios";
/// Validity of a certificate of a tenant or operator, unless the request asks for another.
pub const DEFAULT_VALIDITY: Duration = Duration::from_secs(365 * DAY_SECS);

const CA_ORGANIZATION: &str = "fabricbios-ca";
const DAY_SECS: u64 = 86_400;
const CA_VALIDITY: Duration = Duration::from_secs(3_652 * DAY_SECS);
/// The largest difference between the clocks of the machines of a fabric. Certificates begin this long before now.
const BACKDATED: Duration = Duration::from_secs(3_600);

/// The authority. Its key never leaves it.
pub struct Ca {
    issuer: Issuer<'static, SecretKey>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    not_after: SystemTime,
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Ca {
    /// Makes a new authority as PEM text for [`Ca::from_pem`]: key, then certificate. Its name has a part of its key's
    /// digest: a client tells a node with certificates of two CAs by name which one it trusts.
    pub(crate) fn generate(now: SystemTime) -> Result<Zeroizing<String>, rcgen::Error> {
        let key = SecretKey::generate()?;
        let digest = Sha256::digest(key.subject_public_key_info());
        let digest = base16ct::lower::encode_string(&digest[..4]);
        let name = names(&format!("fabricBIOS fabric CA {digest}"), CA_ORGANIZATION);
        self_signed(&key, name, now)
    }

    /// Makes a new certificate of an authority with its key and its name, so that what it has signed stays valid.
    pub(crate) fn renewed(
        key: &SecretKey,
        old: &CertificateDer<'static>,
        now: SystemTime,
    ) -> Result<Zeroizing<String>, rcgen::Error> {
        let name = crate::subject::common_name(old);
        let name = name.map_err(|_unread| rcgen::Error::CouldNotParseCertificate)?;
        self_signed(key, names(&name, CA_ORGANIZATION), now)
    }

    /// Reads an authority from PEM text.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, FileProblem> {
        let key = crate::pem::key_pair(pem)?;
        let certificate = crate::pem::first_certificate(pem.as_bytes())?;
        let not_after = crate::subject::not_after(&certificate)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| BadCertificate::Unreadable(error.to_string()))?;
        let spki = crate::subject::public_key_info(&certificate)?;
        if spki != issuer.key().subject_public_key_info() {
            return Err(FileProblem::OtherKey);
        }
        let certificate_pem =
            crate::pem::first_certificate_block(pem).ok_or(FileProblem::Certificates(0))?;
        Ok(Self {
            issuer,
            certificate,
            certificate_pem: certificate_pem.to_owned(),
            not_after,
        })
    }

    /// The certificate that peers are verified against.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The end of its validity.
    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Signs the key of a tenant or an operator and returns the reply to IDENTITY_ISSUE. The caller checks the
    /// permission.
    ///
    /// # Errors
    /// If the request is invalid, or the authority has expired.
    pub fn issue(&self, request: &IssueRequest, now: SystemTime) -> Result<Reply, Refusal> {
        check_tenant(&request.tenant)?;
        if !matches!(request.role, Role::Tenant | Role::Operator) {
            return Err(refused(
                "the identity of a node or scheduler is not issued over the network: `fabricctl fabric sign` makes it",
            ));
        }
        let key = requested_key(&request.csr_der)?;
        let params = self.client_params(request, now)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|e| internal(&e))?;
        Ok(Reply::Issued {
            certificate_pem: certificate.pem(),
            ca_pem: self.certificate_pem.clone(),
        })
    }

    /// Makes the certificate of a node or scheduler with this key, valid for `validity`; `None`: as long as the
    /// authority.
    pub(crate) fn certify(
        &self,
        key: &impl PublicKeyData,
        member: &Member,
        validity: Option<Duration>,
        now: SystemTime,
    ) -> Result<String, rcgen::Error> {
        let mut params = leaf_params(&[
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ]);
        params.serial_number = Some(new_serial()?);
        params.subject_alt_names = vec![SanType::DnsName(NODE_DNS_NAME.try_into()?)];
        for label in member.labels() {
            let uri = format!("{}{label}", Label::URI_SCHEME);
            params.subject_alt_names.push(SanType::URI(uri.try_into()?));
        }
        params.distinguished_name = names(member.name(), organization(member.role()));
        params.not_before = (now - BACKDATED).into();
        let end = validity.map_or(self.not_after, |it| (now + it).min(self.not_after));
        params.not_after = end.into();
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }

    /// [`Ca::certify`] for the key of a PKCS #10 request, DER, whose signature proves the possession of the key.
    ///
    /// # Errors
    /// If the request is invalid, or the authority has expired.
    pub(crate) fn certify_request(
        &self,
        csr_der: &[u8],
        member: &Member,
        validity: Option<Duration>,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        self.refuse_expired(now)?;
        let key = requested_key(csr_der)?;
        let certified = self.certify(&key, member, validity, now);
        certified.map_err(|error| internal(&error))
    }

    fn client_params(
        &self,
        request: &IssueRequest,
        now: SystemTime,
    ) -> Result<CertificateParams, Refusal> {
        let mut params = leaf_params(&[ExtendedKeyUsagePurpose::ClientAuth]);
        params.serial_number = Some(new_serial().map_err(|error| internal(&error))?);
        params.distinguished_name = names(&request.tenant, organization(request.role));
        params.not_before = (now - BACKDATED).into();
        params.not_after = self.last_moment(request.valid_secs, now)?.into();
        Ok(params)
    }

    /// The end of a new certificate: at most the end of the authority.
    fn last_moment(&self, valid_secs: u32, now: SystemTime) -> Result<SystemTime, Refusal> {
        let validity = match valid_secs {
            0 => DEFAULT_VALIDITY,
            secs => Duration::from_secs(secs.into()),
        };
        self.refuse_expired(now)?;
        Ok((now + validity).min(self.not_after))
    }

    fn refuse_expired(&self, now: SystemTime) -> Result<(), Refusal> {
        match now < self.not_after {
            true => Ok(()),
            false => Err(refused(
                "the fabric CA itself has expired: on a node with a CA of its own the operator renews it with \
                 `fabricbiosd renew-ca`",
            )),
        }
    }
}

/// A private key that is wiped when it is dropped.
pub(crate) struct SecretKey(pub(crate) KeyPair);

impl SecretKey {
    pub(crate) fn generate() -> Result<Self, rcgen::Error> {
        KeyPair::generate().map(Self)
    }

    pub(crate) fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.serialize_pem())
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PublicKeyData for SecretKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        PublicKeyData::algorithm(&self.0)
    }
}

impl SigningKey for SecretKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// The key of a PKCS #10 request, whose signature proves that the sender has the private key.
fn requested_key(csr_der: &[u8]) -> Result<SubjectPublicKeyInfo, Refusal> {
    if csr_der.len() > CSR_BYTES_MAX {
        let size = csr_der.len();
        return Err(refused(format!(
            "signing request of {size} bytes; at most {CSR_BYTES_MAX}"
        )));
    }
    let (rest, csr) = X509CertificationRequest::from_der(csr_der)
        .map_err(|e| refused(format!("the signing request is not PKCS #10: {e}")))?;
    if !rest.is_empty() {
        return Err(refused("the signing request has bytes after its end"));
    }
    csr.verify_signature()
        .map_err(|e| refused(format!("the signing request is not signed by its key: {e}")))?;
    SubjectPublicKeyInfo::from_der(csr.certification_request_info.subject_pki.raw).map_err(|e| {
        refused(format!(
            "this kind of key is not supported: {e}; use ECDSA P-256"
        ))
    })
}

fn check_tenant(tenant: &str) -> Result<(), Refusal> {
    if is_tenant_name(tenant) {
        return Ok(());
    }
    Err(refused("a tenant's name is 1 to 64 of a-z 0-9 - _ ."))
}

/// Key and new certificate of an authority, as PEM.
fn self_signed(
    key: &SecretKey,
    name: DistinguishedName,
    now: SystemTime,
) -> Result<Zeroizing<String>, rcgen::Error> {
    let certificate = ca_params(name, now).self_signed(key)?;
    let pem = format!("{}{}", *key.pem(), certificate.pem());
    Ok(Zeroizing::new(pem))
}

fn ca_params(name: DistinguishedName, now: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.distinguished_name = name;
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + CA_VALIDITY).into();
    params
}

fn leaf_params(usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

/// A random serial number (RFC 5280 §4.1.2.2): one key can have several certificates of a CA.
fn new_serial() -> Result<SerialNumber, rcgen::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_failed| rcgen::Error::RingUnspecified)?;
    // Positive, and never zero.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn names(common_name: &str, organization: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::OrganizationName, organization);
    names.push(DnType::CommonName, common_name);
    names
}

fn refused(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, message)
}

fn internal(error: &rcgen::Error) -> Refusal {
    let message = format!("the fabric CA could not sign: {error}");
    Refusal::new(LeaseError::Internal, RefusalClass::Transient, message)
}

/// The request of the node itself for the identity of its first operator.
pub(crate) fn first_operator(csr_der: Vec<u8>) -> IssueRequest {
    IssueRequest {
        tenant: "admin".into(),
        role: Role::Operator,
        valid_secs: 0,
        csr_der,
    }
}
