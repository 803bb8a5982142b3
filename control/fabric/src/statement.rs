//! Statements of members outside of a connection: signed with the key of the member's certificate, which is ECDSA with
//! P-256 (SHA-256, DER).

use std::{sync::Arc, time::SystemTime};

use fabricbios_wire::{NodeId, Role};
use rustls::{
    SignatureScheme,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{CertificateDer, ServerName},
};

use crate::{
    Certified, Fabric, FabricId, FileProblem, NODE_DNS_NAME, Subject,
    certified::{server_verifier, unix_time},
    subject,
};

const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

impl Fabric {
    /// The certificate in the present fabric.
    ///
    /// # Errors
    /// Never for an identity that was opened: it has one.
    pub fn present(&self) -> Result<&Certified, FileProblem> {
        { self.certified().first() }.ok_or(FileProblem::Certificates(0))
    }

    /// Signs with the key of the node or scheduler. The text must begin with a domain of its own, so that the signature is
    /// never one of TLS.
    ///
    /// # Errors
    /// If the key is none of ECDSA with P-256.
    pub fn sign(&self, text: &[u8]) -> Result<Vec<u8>, FileProblem> {
        let key = rustls::crypto::ring::sign::any_ecdsa_type(self.key().der())?;
        let signer = key.choose_scheme(&[SCHEME]);
        let signer = signer.ok_or(FileProblem::NotP256)?;
        Ok(signer.sign(text)?)
    }
}

/// Verifies members of one fabric, and what they have signed.
#[derive(Debug)]
pub struct Verifier {
    fabric: FabricId,
    server: Arc<WebPkiServerVerifier>,
}

/// A node or scheduler whose certificate was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// SHA-256 of its SubjectPublicKeyInfo.
    pub id: NodeId,
    /// What it is: the certificates of tenants and operators are refused.
    pub role: Role,
    /// The end of the certificate.
    pub not_after: SystemTime,
    /// The key, without its algorithm.
    key: Vec<u8>,
}

impl Verifier {
    /// Verifies members that this CA has signed.
    ///
    /// # Errors
    /// If the certificate of the CA cannot be read.
    pub fn new(ca: &CertificateDer<'static>) -> Result<Self, FileProblem> {
        Ok(Self {
            fabric: FabricId::of_ca(ca)?,
            server: server_verifier(ca)?,
        })
    }

    /// Verifies members of the fabric of this identity file, PEM: its second certificate is that of the CA.
    ///
    /// # Errors
    /// If the text is no identity.
    pub fn of_identity(pem: &[u8]) -> Result<Self, FileProblem> {
        match <[_; 2]>::try_from(crate::pem::certificates(pem)?) {
            Ok([_, ca]) => Self::new(&ca),
            Err(found) => Err(FileProblem::Certificates(found.len())),
        }
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> FabricId {
        self.fabric
    }

    /// Verifies a certificate: signature of the CA, dates, name and uses.
    ///
    /// # Errors
    /// If it is not that of a node or scheduler of the fabric that is valid now.
    pub fn member(&self, der: &[u8], now: SystemTime) -> Result<Verified, FileProblem> {
        let certificate = CertificateDer::from(der);
        let refused = |why: String| FileProblem::NotAccepted(why);
        let name = ServerName::try_from(NODE_DNS_NAME).map_err(|why| refused(why.to_string()))?;
        let accepted =
            self.server
                .verify_server_cert(&certificate, &[], &name, &[], unix_time(now));
        accepted.map_err(|why| refused(why.to_string()))?;
        let Subject {
            role, not_after, ..
        } = Subject::from_certificate(&certificate)?;
        if !matches!(role, Role::Node | Role::Scheduler) {
            return Err(FileProblem::NotANode);
        }
        Ok(Verified {
            id: subject::node_id(&subject::public_key_info(&certificate)?),
            role,
            not_after,
            key: subject::public_key(&certificate)?,
        })
    }
}

impl Verified {
    /// Whether the member has signed this text.
    #[must_use]
    pub fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let of_scheme = known.mapping.iter().find(|(scheme, _)| *scheme == SCHEME);
        // The first of the algorithms has the curve of the scheme's name, as TLS 1.3 uses it.
        let algorithm = of_scheme.and_then(|(_, algorithms)| algorithms.first());
        algorithm.is_some_and(|it| it.verify_signature(&self.key, text, signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::FabricDirectory;

    fn now() -> SystemTime {
        SystemTime::now()
    }

    #[test]
    fn what_a_member_has_signed_is_told_from_everything_else() {
        let root = tempfile::tempdir().unwrap();
        let fabric = FabricDirectory::init(root.path(), now()).unwrap();
        let scheduler = Fabric::open_scheduler(&fabric.scheduler_identity(), now()).unwrap();
        let identity = fs::read(fabric.admin_identity()).unwrap();
        let verifier = Verifier::of_identity(&identity).unwrap();
        assert_eq!(verifier.fabric(), fabric.id());
        let certificate = &scheduler.present().unwrap().certificate;
        let member = verifier.member(certificate, now()).unwrap();
        assert_eq!(
            (member.id, member.role),
            (scheduler.node_id(), Role::Scheduler)
        );
        let signature = scheduler.sign(b"a text").unwrap();
        assert!(signature.len() <= 72);
        assert!(member.has_signed(b"a text", &signature));
        assert!(!member.has_signed(b"another text", &signature));
        assert!(!member.has_signed(b"a text", &signature[1..]));
        assert!(!member.has_signed(b"a text", &[]));
    }

    #[test]
    fn a_certificate_that_is_no_members_here_and_now_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let fabric = FabricDirectory::init(&root.path().join("ours"), now()).unwrap();
        let others = FabricDirectory::init(&root.path().join("theirs"), now()).unwrap();
        let verifier = Verifier::new(fabric.ca().certificate()).unwrap();
        let of = |identity: &std::path::Path| {
            crate::pem::first_certificate(&fs::read(identity).unwrap()).unwrap()
        };
        let refused = |der: &[u8], at: SystemTime, word: &str| {
            let why = verifier.member(der, at).unwrap_err().to_string();
            assert!(why.contains(word), "{why}");
        };
        refused(&of(&others.scheduler_identity()), now(), "not accepted");
        refused(&of(&fabric.admin_identity()), now(), "not accepted");
        refused(fabric.ca().certificate(), now(), "not accepted");
        refused(b"rubbish", now(), "not accepted");
        let late = now() + Duration::from_secs(100 * 366 * 86_400);
        refused(&of(&fabric.scheduler_identity()), late, "not accepted");
        verifier
            .member(&of(&fabric.scheduler_identity()), now())
            .unwrap();
    }
}
