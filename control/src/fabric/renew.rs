//! A new certificate of the CA for the same node.

use std::{path::Path, sync::Arc, time::SystemTime};

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroize;

use super::{
    ADMIN, CA, CA_KEY, CA_REMEDY, Fabric, IdentityError, NODE, damaged, make_admin, make_node,
    making, read, write,
};
use crate::{Ca, principal, tls};

impl Fabric {
    /// Makes a new certificate of the CA for ten years, and with it new ones for the node, whose key and id stay, and for
    /// the first operator. With the same key of the CA every other identity stays valid to its own end; with a new one
    /// (`is_new_key`) all are void. The caller holds the lock of the directory. A call that was interrupted is repeated.
    ///
    /// # Errors
    /// There is no node whose id could be kept, or `ca-key.pem` is not of its CA, or a file cannot be written.
    pub fn renew(
        state_dir: &Path,
        is_new_key: bool,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let (ca_path, node_path) = (state_dir.join(CA_KEY), state_dir.join(NODE));
        let bad_node = damaged(
            &node_path,
            "restore it from a backup: its key is the node's id",
        );
        let text = read(&node_path)?.ok_or_else(|| bad_node("missing".into()))?;
        let (_, signer, mut der) = tls::parts(text.as_bytes()).map_err(&bad_node)?;
        let key = KeyPair::try_from(&der).map_err(|error| bad_node(error.to_string()));
        der.zeroize();
        let key = key?;
        let text = match is_new_key {
            true => Ca::generate(now),
            false => Ca::with_key(ca_key(&ca_path, &signer)?, now),
        };
        let text = text.map_err(making(&ca_path))?;
        let ca = Ca::from_pem(&text).map_err(making(&ca_path))?;
        write(&ca_path, &text)?;
        write(&state_dir.join(CA), ca.certificate_pem())?;
        let node = make_node(&node_path, key, &ca, now)?;
        let admin_identity = state_dir.join(ADMIN);
        make_admin(&admin_identity, &ca, now)?;
        Ok(Self {
            ca: Arc::new(ca),
            node,
            admin_identity,
            new: false,
        })
    }
}

/// The key of the CA that has signed the node's identity. Its certificate may be damaged.
fn ca_key(path: &Path, signer: &CertificateDer<'_>) -> Result<KeyPair, IdentityError> {
    let bad = damaged(path, CA_REMEDY);
    let text = read(path)?.ok_or_else(|| bad("missing".into()))?;
    let mut key =
        KeyPair::from_pem(&text).map_err(|error| bad(format!("its private key: {error}")))?;
    let info = principal::public_key_info(signer).map_err(&bad)?;
    if info == key.subject_public_key_info() {
        return Ok(key);
    }
    key.zeroize();
    Err(bad(format!("not the key of the CA that has signed {NODE}")))
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use fabricbios_wire::{IssueRequest, Reply, Role};
    use rcgen::CertificateParams;
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::{ServerName, UnixTime},
        server::WebPkiClientVerifier,
    };

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn made() -> (tempfile::TempDir, Fabric) {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(directory.path(), SystemTime::now()).unwrap();
        (directory, fabric)
    }

    fn roots(ca: &CertificateDer<'static>) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).unwrap();
        Arc::new(roots)
    }

    /// A tenant's certificate for twenty years at most.
    fn tenant(fabric: &Fabric) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let csr = CertificateParams::default().serialize_request(&key);
        let request = IssueRequest {
            tenant: "blue".into(),
            role: Role::Tenant,
            valid_secs: u32::MAX,
            csr_der: csr.unwrap().der().to_vec(),
        };
        let Ok(Reply::Issued {
            certificate_pem, ..
        }) = fabric.ca().issue(&request, SystemTime::now())
        else {
            panic!("no certificate")
        };
        tls::first_certificate(certificate_pem.as_bytes()).unwrap()
    }

    /// Whether the node of this fabric admits the client, and a client with this CA the node.
    fn meet(
        fabric: &Fabric,
        client: &CertificateDer<'static>,
        its_ca: &CertificateDer<'static>,
    ) -> (bool, bool) {
        let ring = || Arc::new(rustls::crypto::ring::default_provider());
        let node =
            WebPkiClientVerifier::builder_with_provider(roots(fabric.ca().certificate()), ring());
        let admitted = node
            .build()
            .unwrap()
            .verify_client_cert(client, &[], UnixTime::now());
        let peer = WebPkiServerVerifier::builder_with_provider(roots(its_ca), ring());
        let name = ServerName::try_from(crate::NODE_DNS_NAME).unwrap();
        let certificate = &fabric.node().certificate;
        let believed =
            peer.build()
                .unwrap()
                .verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
        (admitted.is_ok(), believed.is_ok())
    }

    #[test]
    fn with_the_same_key_the_node_id_and_every_identity_stay() {
        let (directory, before) = made();
        let (blue, its_ca) = (tenant(&before), before.ca().certificate().clone());
        let later = SystemTime::now() + Duration::from_secs(60);
        let after = Fabric::renew(directory.path(), false, later).unwrap();
        assert_eq!(after.node_id(), before.node_id());
        assert!(after.ca().not_after() > before.ca().not_after());
        assert_eq!(meet(&after, &blue, &its_ca), (true, true));
        let again = Fabric::open_or_create(directory.path(), later).unwrap();
        assert_eq!(again.node_id(), before.node_id());
        assert_eq!(again.ca().certificate(), after.ca().certificate());
    }

    #[test]
    fn with_a_new_key_the_node_id_stays_and_every_identity_is_void() {
        let (directory, before) = made();
        let (blue, its_ca) = (tenant(&before), before.ca().certificate().clone());
        // Also if the old key is lost.
        fs::remove_file(directory.path().join(CA_KEY)).unwrap();
        let after = Fabric::renew(directory.path(), true, SystemTime::now()).unwrap();
        assert_eq!(after.node_id(), before.node_id());
        assert_eq!(meet(&after, &blue, &its_ca), (false, false));
        let new = (tenant(&after), after.ca().certificate().clone());
        assert_eq!(meet(&after, &new.0, &new.1), (true, true));
        let again = Fabric::open_or_create(directory.path(), SystemTime::now()).unwrap();
        assert_eq!(again.node_id(), before.node_id());
    }

    #[test]
    fn an_expired_ca_stops_a_start_and_is_renewed() {
        let (directory, before) = made();
        let end = before.ca().not_after();
        assert!(end > SystemTime::now() + 9 * YEAR);
        let files =
            || [CA_KEY, CA, NODE, ADMIN].map(|name| fs::read(directory.path().join(name)).unwrap());
        let old = files();
        for refused in [
            Fabric::open_or_create(directory.path(), end).map(drop),
            Fabric::check(directory.path(), end).map(drop),
        ] {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains(CA_KEY) && why.contains("expired"), "{why}");
            assert!(why.contains("fabricbiosd renew-ca"), "{why}");
        }
        assert_eq!(files(), old);
        let after = Fabric::renew(directory.path(), false, end).unwrap();
        assert_eq!(after.node_id(), before.node_id());
        let again = Fabric::open_or_create(directory.path(), end + 9 * YEAR).unwrap();
        assert_eq!(again.node_id(), before.node_id());
    }

    #[test]
    fn an_interrupted_renewal_is_repeated() {
        for is_new_key in [false, true] {
            let (directory, before) = made();
            let at = |name: &str| directory.path().join(name);
            let old = [CA, NODE, ADMIN].map(|name| fs::read(at(name)).unwrap());
            let now = SystemTime::now() + Duration::from_secs(60);
            Fabric::renew(directory.path(), is_new_key, now).unwrap();
            // As after a power cut behind the first file.
            for (name, bytes) in [CA, NODE, ADMIN].iter().zip(old) {
                fs::write(at(name), bytes).unwrap();
            }
            Fabric::open_or_create(directory.path(), now).unwrap_err();
            let after = Fabric::renew(directory.path(), is_new_key, now).unwrap();
            assert_eq!(after.node_id(), before.node_id());
            Fabric::open_or_create(directory.path(), now).unwrap();
        }
    }

    #[test]
    fn files_that_do_not_fit_renew_nothing() {
        let (_other, foreign) = made();
        let foreign_dir = foreign.admin_identity().parent().unwrap();
        for (damage, is_new_key, word) in [
            (Some(CA_KEY), false, "not the key of the CA"),
            (Some(NODE), false, "not the key of the CA"),
            (None, true, "missing"),
        ] {
            let (directory, _fabric) = made();
            let at = |name: &str| directory.path().join(name);
            match damage {
                Some(name) => fs::copy(foreign_dir.join(name), at(name))
                    .map(drop)
                    .unwrap(),
                None => fs::remove_file(at(NODE)).unwrap(),
            }
            let files = || [CA_KEY, CA, NODE, ADMIN].map(|name| fs::read(at(name)).ok());
            let before = files();
            let refused = Fabric::renew(directory.path(), is_new_key, SystemTime::now());
            let why = refused.unwrap_err().to_string();
            assert!(why.contains(word) && why.contains("restore"), "{why}");
            assert_eq!(files(), before);
        }
    }
}
