//! A new certificate of the CA for the same node.

use std::{path::Path, time::SystemTime};

use rcgen::PublicKeyData;
use rustls::pki_types::CertificateDer;

use super::{
    ADMIN, ADMIN_REMEDY, CA, CA_KEY, CA_REMEDY, COPY_REMEDY, Fabric, IdentityError, NODE, Past,
    damaged, join, key_of_node, make_admin, make_node, making, operator, read, write,
};
use crate::{BadCertificate, Ca, FileProblem, ca::SecretKey, pem, subject};

impl Fabric {
    /// Makes a new certificate of the CA for ten years, and new certificates for the node, whose key and id stay, and
    /// for the first operator. If the CA keeps its key, every other identity stays valid to its own end. If the CA gets
    /// a new key (`is_new_key`), all other identities are void. The caller holds the lock of the directory. After an
    /// interruption, repeat the call.
    ///
    /// # Errors
    /// If the directory has no node whose id could stay, or a file belongs to another fabric or is in the place of another
    /// file; nothing has changed then. Or if a file cannot be written.
    pub fn renew(
        state_dir: &Path,
        is_new_key: bool,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let (ca_path, ca_copy) = (state_dir.join(CA_KEY), state_dir.join(CA));
        let (node_path, admin_identity) = (state_dir.join(NODE), state_dir.join(ADMIN));
        let paths = [&ca_path, &ca_copy, &node_path, &admin_identity];
        if let Some(path) = paths.into_iter().find(|it| it.is_dir()) {
            return Err(damaged(path, "move the directory away")(
                FileProblem::Directory,
            ));
        }
        if !is_new_key && let Past::Joined(joined) = join::open(state_dir)? {
            let what = FileProblem::Joined(joined.id());
            return Err(damaged(&state_dir.join(join::JOINED), JOINED_REMEDY)(what));
        }
        // joined.pem stays: it says which tenants go by their plain names. A new key mends files that do not fit.
        let home = join::home(state_dir);
        let (key, signer) = node_key(&node_path)?;
        let own = OwnKeys::read(&ca_copy, is_new_key.then_some(&*ca_path))?;
        let is_own = own.has(&signer);
        if !is_own.map_err(|error| bad_node(&node_path)(error.into()))? {
            return Err(damaged(&node_path, FOREIGN_REMEDY)(
                FileProblem::OtherSigner,
            ));
        }
        check_admin(&admin_identity, &own)?;
        let text = match is_new_key {
            true => Ca::generate(now),
            false => Ca::renewed(&ca_key(&ca_path, &signer)?, &signer, now),
        };
        let text = text.map_err(making(&ca_path))?;
        let ca = Ca::from_pem(&text).map_err(making(&ca_path))?;
        write(&ca_path, &text)?;
        let node = make_node(&node_path, &key, &ca, now)?;
        make_admin(&admin_identity, &ca, now)?;
        // Written last: until then the old copy shows which files belong to this node.
        write(&ca_copy, ca.certificate_pem())?;
        Ok(Self::alone(ca, node, home, admin_identity, false))
    }
}

const JOINED_REMEDY: &str = "its certificate is renewed with `fabricbiosd node-request`, `fabricctl fabric sign` where the key of the \
    fabric's CA is, and `fabricbiosd node-accept`; `renew-ca --new-key` leaves the fabric for a new CA of the node's own";

const FOREIGN_REMEDY: &str = "restore the file from a backup of this node: its key is the node's id; if the file is this node's, move \
    ca.pem away and repeat the command";

fn bad_node(path: &Path) -> impl Fn(FileProblem) -> IdentityError {
    damaged(
        path,
        "restore the file from a backup: its key is the node's id",
    )
}

/// The key of the node, and the certificate of the CA that has signed its identity.
fn node_key(path: &Path) -> Result<(SecretKey, CertificateDer<'static>), IdentityError> {
    let bad = bad_node(path);
    let text = read(path)?.ok_or_else(|| bad(FileProblem::Missing))?;
    let (certificate, signer, _der) = pem::parts(text.as_bytes()).map_err(&bad)?;
    let key = pem::key_pair(&text).map_err(&bad)?;
    match key_of_node(&certificate).map_err(&bad)? == key.subject_public_key_info() {
        true => Ok((key, signer)),
        false => Err(bad(FileProblem::OtherKey)),
    }
}

/// The public keys of the CAs that may have signed the files of this node. `None`: unknown, because the copy is
/// missing.
struct OwnKeys(Option<Vec<Vec<u8>>>);

impl OwnKeys {
    /// `interrupted`: `ca-key.pem`, if an interrupted renewal may have written a new key there that the copy does not
    /// have yet.
    fn read(copy: &Path, interrupted: Option<&Path>) -> Result<Self, IdentityError> {
        let Some(text) = read(copy)? else {
            return Ok(Self(None));
        };
        let certificate = pem::first_certificate(text.as_bytes());
        let of_copy = certificate.and_then(|it| Ok(subject::public_key_info(&it)?));
        let mut keys = vec![of_copy.map_err(damaged(copy, COPY_REMEDY))?];
        // This file may be lost or damaged. A foreign copy beside the node's own other files looks like an interrupted
        // renewal: that is harmless, because the copy holds no secret and is made again.
        let pem = interrupted.and_then(|path| read(path).ok().flatten());
        let key = pem.and_then(|pem| pem::key_pair(&pem).ok());
        keys.extend(key.map(|key| key.subject_public_key_info()));
        Ok(Self(Some(keys)))
    }

    fn has(&self, signer: &CertificateDer<'_>) -> Result<bool, BadCertificate> {
        let info = subject::public_key_info(signer)?;
        Ok(self.0.as_ref().is_none_or(|keys| keys.contains(&info)))
    }
}

/// Refuses to overwrite a file that is not the identity of an operator of this fabric.
fn check_admin(path: &Path, own: &OwnKeys) -> Result<(), IdentityError> {
    let Some(text) = read(path)? else {
        return Ok(());
    };
    let checked = pem::parts(text.as_bytes()).and_then(|(certificate, signer, _key)| {
        operator(&certificate)?;
        match own.has(&signer)? {
            true => Ok(()),
            false => Err(FileProblem::OtherFabric),
        }
    });
    checked.map_err(damaged(path, ADMIN_REMEDY))
}

/// The key of the CA that has signed the node's identity. Its certificate may be damaged.
fn ca_key(path: &Path, signer: &CertificateDer<'_>) -> Result<SecretKey, IdentityError> {
    let bad = damaged(path, CA_REMEDY);
    let text = read(path)?.ok_or_else(|| bad(FileProblem::Missing))?;
    let key = pem::key_pair(&text).map_err(&bad)?;
    let info = subject::public_key_info(signer).map_err(|error| bad(error.into()))?;
    match info == key.subject_public_key_info() {
        true => Ok(key),
        false => Err(bad(FileProblem::NotTheSigner)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc, time::Duration};

    use fabricbios_wire::{IssueRequest, Reply, Role};
    use rcgen::CertificateParams;
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::{ServerName, UnixTime},
        server::WebPkiClientVerifier,
    };

    use super::{super::identity_pem, *};

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn made() -> (tempfile::TempDir, Fabric) {
        let directory = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(directory.path(), SystemTime::now()).unwrap();
        (directory, fabric)
    }

    fn own(fabric: &Fabric) -> &Ca {
        fabric.ca().unwrap()
    }

    fn roots(ca: &CertificateDer<'static>) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).unwrap();
        Arc::new(roots)
    }

    /// Issues a tenant's certificate for at most twenty years.
    fn tenant(fabric: &Fabric) -> CertificateDer<'static> {
        let pem = tenant_pem(fabric, &SecretKey::generate().unwrap());
        pem::first_certificate(pem.as_bytes()).unwrap()
    }

    fn tenant_pem(fabric: &Fabric, key: &SecretKey) -> String {
        let csr = CertificateParams::default().serialize_request(key);
        let request = IssueRequest {
            tenant: "blue".into(),
            role: Role::Tenant,
            valid_secs: u32::MAX,
            csr_der: csr.unwrap().der().to_vec(),
        };
        let Ok(Reply::Issued {
            certificate_pem, ..
        }) = own(fabric).issue(&request, SystemTime::now())
        else {
            panic!("no certificate")
        };
        certificate_pem
    }

    /// Whether the node admits the client, and whether a client that trusts `its_ca` admits the node.
    fn meet(
        fabric: &Fabric,
        client: &CertificateDer<'static>,
        its_ca: &CertificateDer<'static>,
    ) -> (bool, bool) {
        let ring = || Arc::new(rustls::crypto::ring::default_provider());
        let node =
            WebPkiClientVerifier::builder_with_provider(roots(own(fabric).certificate()), ring());
        let admitted = node
            .build()
            .unwrap()
            .verify_client_cert(client, &[], UnixTime::now());
        let peer = WebPkiServerVerifier::builder_with_provider(roots(its_ca), ring());
        let name = ServerName::try_from(crate::NODE_DNS_NAME).unwrap();
        let certificate = &fabric.certified()[0].certificate;
        let believed =
            peer.build()
                .unwrap()
                .verify_server_cert(certificate, &[], &name, &[], UnixTime::now());
        (admitted.is_ok(), believed.is_ok())
    }

    #[test]
    fn with_the_same_key_the_node_id_and_every_identity_stay() {
        let (directory, before) = made();
        let (blue, its_ca) = (tenant(&before), own(&before).certificate().clone());
        let later = SystemTime::now() + Duration::from_secs(60);
        let after = Fabric::renew(directory.path(), false, later).unwrap();
        assert_eq!(after.node_id(), before.node_id());
        assert!(own(&after).not_after() > own(&before).not_after());
        assert_eq!(meet(&after, &blue, &its_ca), (true, true));
        let again = Fabric::open_or_create(directory.path(), later).unwrap();
        assert_eq!(again.node_id(), before.node_id());
        assert_eq!(own(&again).certificate(), own(&after).certificate());
    }

    #[test]
    fn with_a_new_key_the_node_id_stays_and_every_identity_is_void() {
        let (directory, before) = made();
        let (blue, its_ca) = (tenant(&before), own(&before).certificate().clone());
        // A renewal with a new key does not need the old key.
        fs::remove_file(directory.path().join(CA_KEY)).unwrap();
        let after = Fabric::renew(directory.path(), true, SystemTime::now()).unwrap();
        assert_eq!(after.node_id(), before.node_id());
        assert_eq!(meet(&after, &blue, &its_ca), (false, false));
        let new = (tenant(&after), own(&after).certificate().clone());
        assert_eq!(meet(&after, &new.0, &new.1), (true, true));
        let again = Fabric::open_or_create(directory.path(), SystemTime::now()).unwrap();
        assert_eq!(again.node_id(), before.node_id());
    }

    #[test]
    fn an_expired_ca_stops_a_start_and_is_renewed() {
        let (directory, before) = made();
        let end = own(&before).not_after();
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
            let old = [CA, ADMIN, NODE].map(|name| fs::read(at(name)).unwrap());
            let now = SystemTime::now() + Duration::from_secs(60);
            Fabric::renew(directory.path(), is_new_key, now).unwrap();
            // As after a power cut behind each file: the files that were written later are the old ones again.
            for (name, bytes) in [CA, ADMIN, NODE].iter().zip(old) {
                fs::write(at(name), bytes).unwrap();
                let is_cut = |name| fs::read(at(name)).unwrap();
                let cut = [CA_KEY, CA, NODE, ADMIN].map(is_cut);
                Fabric::open_or_create(directory.path(), now).unwrap_err();
                let after = Fabric::renew(directory.path(), is_new_key, now).unwrap();
                assert_eq!(after.node_id(), before.node_id());
                Fabric::open_or_create(directory.path(), now).unwrap();
                for (name, bytes) in [CA_KEY, CA, NODE, ADMIN].iter().zip(cut) {
                    fs::write(at(name), bytes).unwrap();
                }
            }
        }
    }

    #[test]
    fn files_that_do_not_fit_renew_nothing() {
        let (other, foreign) = made();
        let key = SecretKey::generate().unwrap();
        let tenant = tenant_pem(&foreign, &key);
        let tenant = identity_pem(&tenant, &key, own(&foreign).certificate_pem());
        fs::write(other.path().join("tenant"), tenant).unwrap();
        let all = [CA_KEY, CA, NODE, ADMIN];
        for (from, name, with, word) in [
            (CA_KEY, CA_KEY, &[false][..], "not the key of the CA"),
            (NODE, NODE, &[false, true], "not that of ca.pem"),
            (CA, CA, &[false], "not that of ca.pem"),
            (ADMIN, ADMIN, &[false, true], "another fabric"),
            (ADMIN, NODE, &[false, true], "no identity of a node"),
            (NODE, ADMIN, &[false, true], "no operator"),
            ("tenant", ADMIN, &[false, true], "no operator"),
            ("none", NODE, &[false, true], "missing"),
            ("directory", CA, &[false, true], "a directory"),
            ("directory", ADMIN, &[false, true], "a directory"),
        ] {
            let (directory, _fabric) = made();
            let at = directory.path().join(name);
            fs::remove_file(&at).unwrap();
            match from {
                "none" => {}
                "directory" => fs::create_dir(&at).unwrap(),
                from => drop(fs::copy(other.path().join(from), &at).unwrap()),
            }
            let files = || all.map(|name| fs::read(directory.path().join(name)).ok());
            let before = files();
            for is_new_key in with {
                let refused = Fabric::renew(directory.path(), *is_new_key, SystemTime::now());
                let why = refused.unwrap_err().to_string();
                assert!(why.contains(word) && why.contains(name), "{from}: {why}");
                assert!(why.contains("restore") || why.contains("move"), "{why}");
                assert_eq!(files(), before, "{from} as {name}");
            }
        }
    }

    #[test]
    fn two_files_in_each_others_place_are_refused_and_lose_no_key() {
        for is_new_key in [false, true] {
            let (directory, before) = made();
            let at = |name: &str| directory.path().join(name);
            let swap = || {
                fs::rename(at(NODE), at("aside")).unwrap();
                fs::rename(at(ADMIN), at(NODE)).unwrap();
                fs::rename(at("aside"), at(ADMIN)).unwrap();
            };
            swap();
            let refused = Fabric::renew(directory.path(), is_new_key, SystemTime::now());
            let why = refused.unwrap_err().to_string();
            assert!(why.contains(NODE), "{why}");
            swap();
            let after = Fabric::renew(directory.path(), is_new_key, SystemTime::now()).unwrap();
            assert_eq!(after.node_id(), before.node_id());
        }
    }
}
