//! The directory of a fabric of many nodes: its authority, its first operator and its scheduler. It is on the machine
//! of whoever signs; no node and no scheduler needs it.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_wire::{NodeId, Role};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject};

use crate::{
    Ca, FabricId, FileProblem, IdentityError, Label,
    ca::SecretKey,
    durable,
    node::{
        ADMIN, CA, CA_KEY, NODE, damaged, identity_pem, io_error, make_admin, making, read, write,
    },
    pem, private, subject,
};

pub(crate) const SCHEDULER: &str = "scheduler.identity";

/// A member of a fabric that is no person: the authority signs its certificate by [`FabricDirectory::sign`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// A node, with labels.
    Node(Vec<Label>),
    /// A scheduler.
    Scheduler,
}

impl Member {
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Node(_) => Role::Node,
            Self::Scheduler => Role::Scheduler,
        }
    }

    /// Subject CN of its certificate.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Node(_) => crate::NODE_DNS_NAME,
            Self::Scheduler => "scheduler.fabricbios",
        }
    }

    pub(crate) fn labels(&self) -> &[Label] {
        match self {
            Self::Node(labels) => labels,
            Self::Scheduler => &[],
        }
    }
}

/// An opened directory of a fabric.
#[derive(Debug)]
pub struct FabricDirectory {
    path: PathBuf,
    ca: Arc<Ca>,
    id: FabricId,
}

/// A signed certificate of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The certificate, then that of the CA.
    pub pem: String,
    /// The member: SHA-256 of its SubjectPublicKeyInfo.
    pub id: NodeId,
    /// The end of the certificate.
    pub not_after: SystemTime,
}

impl FabricDirectory {
    /// Makes a fabric: `ca-key.pem`, `scheduler.identity`, `admin.identity`, and last `ca.pem`. Finishes one whose making
    /// was interrupted.
    ///
    /// # Errors
    /// If the directory has a fabric or a node, others can write to it, or a file cannot be written.
    pub fn init(path: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        durable::make_private_dir(path).map_err(io_error("create", path))?;
        refuse_node(path)?;
        if path.join(CA).exists() {
            return Err(damaged(path, "choose a directory that does not exist")(
                FileProblem::Exists,
            ));
        }
        let key_path = path.join(CA_KEY);
        if !key_path.exists() {
            let mut files = fs::read_dir(path).map_err(io_error("read", path))?;
            if files.next().is_some() {
                return Err(damaged(path, "choose a directory that does not exist")(
                    FileProblem::NotEmpty,
                ));
            }
            private::check(path, &[])?;
            fs::set_permissions(path, Permissions::from_mode(0o700))
                .map_err(io_error("set the mode of", path))?;
            write(&key_path, &Ca::generate(now).map_err(making(&key_path))?)?;
        }
        let directory = Self::open(path, now)?;
        directory.make_scheduler(&path.join(SCHEDULER), now)?;
        make_admin(&path.join(ADMIN), &directory.ca, now)?;
        write(&path.join(CA), directory.ca.certificate_pem())?;
        Ok(directory)
    }

    /// Makes the identity of a further scheduler, a file of mode 0600. Each scheduler has an identity of its own: in etcd
    /// and in announcements its key tells it from the others.
    ///
    /// # Errors
    /// If the file is there already, or cannot be written.
    pub fn add_scheduler(&self, file: &Path, now: SystemTime) -> Result<NodeId, IdentityError> {
        // The name is taken first, so that nothing is overwritten.
        match fs::File::create_new(file) {
            Ok(_) => self.make_scheduler(file, now).inspect_err(|_| {
                fs::remove_file(file).ok();
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(damaged(file, "choose a name that is not there")(
                    FileProblem::FileExists,
                ))
            }
            Err(error) => Err(io_error("create", file)(error)),
        }
    }

    fn make_scheduler(&self, file: &Path, now: SystemTime) -> Result<NodeId, IdentityError> {
        let key = SecretKey::generate().map_err(making(file))?;
        let certificate = self.ca.certify(&key, &Member::Scheduler, None, now);
        let certificate = certificate.map_err(making(file))?;
        write(
            file,
            &identity_pem(&certificate, &key, self.ca.certificate_pem()),
        )?;
        let id = pem::first_certificate(certificate.as_bytes())
            .and_then(|it| Ok(subject::node_id(&subject::public_key_info(&it)?)));
        id.map_err(making(file))
    }

    /// Opens the directory of a fabric.
    ///
    /// # Errors
    /// If the directory has no fabric, its authority has expired or cannot be read, or another user can read the key or
    /// write to the directory.
    pub fn open(path: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        refuse_node(path)?;
        let key_path = path.join(CA_KEY);
        if path.is_dir() {
            private::check(path, &[CA_KEY])?;
        }
        let text = read(&key_path)?.ok_or_else(|| {
            damaged(
                &key_path,
                "make a fabric with `fabricctl fabric init DIR`, or name its directory",
            )(FileProblem::Missing)
        })?;
        let bad = damaged(&key_path, "restore the file from a backup");
        let ca = Ca::from_pem(&text).map_err(&bad)?;
        if ca.not_after() <= now {
            return Err(bad(FileProblem::Expired));
        }
        let id = FabricId::of_ca(ca.certificate()).map_err(|error| bad(error.into()))?;
        Ok(Self {
            path: path.to_owned(),
            ca: Arc::new(ca),
            id,
        })
    }

    /// Refuses this directory as the state directory of a node.
    pub(crate) fn refuse_as_state(&self, state_dir: &Path) -> Result<(), IdentityError> {
        let place = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
        match place(state_dir).is_some_and(|it| Some(it) == place(&self.path)) {
            true => Err(damaged(
                state_dir,
                "name a directory of the node's own with --state-dir",
            )(FileProblem::FabricDirectory)),
            false => Ok(()),
        }
    }

    /// The fabric.
    #[must_use]
    pub fn id(&self) -> FabricId {
        self.id
    }

    /// Its authority.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The identity of its first operator.
    #[must_use]
    pub fn admin_identity(&self) -> PathBuf {
        self.path.join(ADMIN)
    }

    /// The identity of its scheduler.
    #[must_use]
    pub fn scheduler_identity(&self) -> PathBuf {
        self.path.join(SCHEDULER)
    }

    /// Signs the key of a request (PKCS #10, PEM) for a member. `validity`: of the certificate; `None`: as long as the
    /// authority's.
    ///
    /// # Errors
    /// If the text is no request, or its signature does not prove that the sender has the key.
    pub fn sign(
        &self,
        request: &str,
        member: &Member,
        validity: Option<Duration>,
        now: SystemTime,
    ) -> Result<Signed, IdentityError> {
        let csr = CertificateSigningRequestDer::from_pem_slice(request.as_bytes());
        let csr = csr.map_err(|error| IdentityError::Request {
            what: FileProblem::NotARequest(pem::plain(&error)),
        })?;
        let certificate = self.ca.certify_request(&csr, member, validity, now);
        let certificate = certificate.map_err(IdentityError::Refused)?;
        let signed = pem::first_certificate(certificate.as_bytes()).and_then(|it| {
            let id = subject::node_id(&subject::public_key_info(&it)?);
            Ok((id, subject::not_after(&it)?))
        });
        let (id, not_after) = signed.map_err(making(&self.path))?;
        Ok(Signed {
            pem: format!("{certificate}{}", self.ca.certificate_pem()),
            id,
            not_after,
        })
    }
}

/// The key of a node's own CA signs for that node alone: a node of a fabric of many must not have the CA's key.
fn refuse_node(path: &Path) -> Result<(), IdentityError> {
    match path.join(NODE).exists() {
        true => Err(damaged(
            path,
            "choose another directory, best on another machine",
        )(FileProblem::StateDirectory)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fabric, Subject};

    fn now() -> SystemTime {
        SystemTime::now()
    }

    #[test]
    fn a_fabric_is_made_once_with_private_files() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("fabric");
        let made = FabricDirectory::init(&path, now()).unwrap();
        let files = [CA_KEY, CA, ADMIN, SCHEDULER];
        for name in files {
            let mode = fs::metadata(path.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), files.len());
        let scheduler = fs::read(made.scheduler_identity()).unwrap();
        let (certificate, ca, _key) = pem::parts(&scheduler).unwrap();
        assert_eq!(
            Subject::from_certificate(&certificate).unwrap().role,
            Role::Scheduler
        );
        assert_eq!(ca, *made.ca().certificate());
        let before = files.map(|name| fs::read(path.join(name)).unwrap());
        let why = FabricDirectory::init(&path, now()).unwrap_err().to_string();
        assert!(why.contains("a fabric already"), "{why}");
        assert_eq!(files.map(|name| fs::read(path.join(name)).unwrap()), before);
        let opened = FabricDirectory::open(&path, now()).unwrap();
        assert_eq!(opened.id(), made.id());
    }

    #[test]
    fn a_fabric_whose_making_was_cut_short_is_finished_with_the_same_key() {
        let root = tempfile::tempdir().unwrap();
        let made = FabricDirectory::init(root.path(), now()).unwrap();
        for name in [CA, ADMIN, SCHEDULER] {
            fs::remove_file(root.path().join(name)).unwrap();
        }
        assert_eq!(
            FabricDirectory::init(root.path(), now()).unwrap().id(),
            made.id()
        );
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_key_that_others_can_reach_signs_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("fabric");
        FabricDirectory::init(&path, now()).unwrap();
        for (name, mode, word) in [(CA_KEY, 0o640, "read"), ("", 0o770, "write")] {
            let at = path.join(name);
            let set = |mode| fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            let mended = fs::metadata(&at).unwrap().permissions().mode();
            set(mode);
            let why = FabricDirectory::open(&path, now()).unwrap_err().to_string();
            assert!(why.contains(word) && why.contains("chmod go-rwx"), "{why}");
            set(mended);
        }
        FabricDirectory::open(&path, now()).unwrap();
    }

    #[test]
    fn a_directory_without_a_fabric_or_of_a_node_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let none = FabricDirectory::open(root.path(), now())
            .unwrap_err()
            .to_string();
        assert!(none.contains("fabricctl fabric init"), "{none}");
        Fabric::open_or_create(root.path(), now()).unwrap();
        for made in [
            FabricDirectory::open(root.path(), now()),
            FabricDirectory::init(root.path(), now()),
        ] {
            let why = made.unwrap_err().to_string();
            assert!(why.contains("the state directory of a node"), "{why}");
        }
        assert!(root.path().join("node.identity").exists());
    }

    #[test]
    fn what_is_no_request_is_not_signed() {
        let root = tempfile::tempdir().unwrap();
        let fabric = FabricDirectory::init(root.path(), now()).unwrap();
        let forged =
            "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
        for text in ["", "rubbish", fabric.ca().certificate_pem(), forged] {
            let refused = fabric
                .sign(text, &Member::Scheduler, None, now())
                .unwrap_err();
            assert!(refused.to_string().contains("request"), "{refused}");
        }
    }
}
