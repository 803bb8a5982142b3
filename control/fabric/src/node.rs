//! The files of a node's identity. The first start makes them; each later start reads them.
//!
//! A first start alone writes `ca-key.pem` (key and certificate of the node's own CA) first, then `node.identity`, then
//! `ca.pem` and `admin.identity`. A later start makes the last two if they are missing, so it finishes an interrupted
//! first start. The order also shows whether a missing `node.identity` was lost or never existed. A damaged file is
//! reported and never replaced. `joined.pem` is there once the node has joined a fabric of many nodes: see `join.rs`.

mod join;
mod renew;
mod scheduler;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_wire::{NodeId, Reply, Role};
use rcgen::CertificateParams;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use zeroize::Zeroizing;

use crate::{
    Ca, Certified, FabricId, FileProblem, IdentityError, Member, Peer, Principal, Subject,
    ca::{self, SecretKey},
    certified::tenant_key,
    directory, durable,
    file::read_text,
    pem, subject,
};

pub use join::Accepted;
use join::Past;

pub(crate) const CA_KEY: &str = "ca-key.pem";
pub(crate) const CA: &str = "ca.pem";
pub(crate) const NODE: &str = "node.identity";
pub(crate) const ADMIN: &str = "admin.identity";
/// The next start replaces an operator identity that is valid for less than this.
const ADMIN_LEFT_MIN: Duration = Duration::from_secs(30 * 86_400);

/// The identity of a node: its key, its certificate in a fabric, and those of its former fabrics. Or that of a scheduler,
/// which has one fabric.
#[derive(Debug)]
pub struct Fabric {
    key: NodeKey,
    id: NodeId,
    /// The present fabric first, then the former ones, the latest first.
    certified: Vec<Certified>,
    /// The fabric of the first start.
    home: FabricId,
    role: Role,
    /// The node's own authority. A node that has joined a fabric has none.
    ca: Option<Arc<Ca>>,
    admin_identity: Option<PathBuf>,
    new: bool,
}

/// The private key of a node.
pub struct NodeKey(Zeroizing<PrivateKeyDer<'static>>);

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey")
    }
}

impl NodeKey {
    /// The key, for TLS.
    #[must_use]
    pub fn der(&self) -> &PrivateKeyDer<'static> {
        &self.0
    }
}

impl Fabric {
    /// Opens the identity of a state directory and makes missing files. The caller holds the lock of the directory, so
    /// that no other daemon does this at the same time.
    pub fn open_or_create(state_dir: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        durable::make_private_dir(state_dir).map_err(io_error("create", state_dir))?;
        refuse_directory(state_dir)?;
        let home = match join::open(state_dir)? {
            Past::Joined(joined) => {
                join::finish(state_dir, &joined)?;
                return Ok(joined.without_ended(now));
            }
            Past::Alone { home } => home,
        };
        let (ca, new) = open_ca(state_dir, now)?;
        let is_published = is_published(state_dir, &ca)?;
        let node = open_node(state_dir, &ca, now)?;
        if !is_published {
            write(&state_dir.join(CA), ca.certificate_pem())?;
        }
        let admin_identity = state_dir.join(ADMIN);
        open_admin(&admin_identity, &ca, now)?;
        Ok(Self::alone(ca, node, home, admin_identity, new))
    }

    /// Checks the files as [`Fabric::open_or_create`] does, and changes nothing. `None`: the directory has no node yet.
    pub fn check(state_dir: &Path, now: SystemTime) -> Result<Option<NodeId>, IdentityError> {
        Ok(Self::read(state_dir, now)?.map(|it| it.id))
    }

    /// Reads the files without a change. `None`: the directory has no node yet.
    fn read(state_dir: &Path, now: SystemTime) -> Result<Option<Self>, IdentityError> {
        refuse_directory(state_dir)?;
        let home = match join::open(state_dir)? {
            Past::Joined(joined) => return Ok(Some(joined.without_ended(now))),
            Past::Alone { home } => home,
        };
        let Some(ca) = read_ca(state_dir, now)? else {
            return Ok(None);
        };
        is_published(state_dir, &ca)?;
        let node = read_node(state_dir, &ca)?;
        let admin_identity = state_dir.join(ADMIN);
        read_admin(&admin_identity, &ca)?;
        Ok(node.map(|node| Self::alone(ca, node, home, admin_identity, false)))
    }

    /// A node with its own CA. That is its home whatever its key is, unless the node has been in a fabric of many nodes.
    fn alone(
        ca: Ca,
        node: Node,
        home: Option<FabricId>,
        admin_identity: PathBuf,
        new: bool,
    ) -> Self {
        Self {
            key: node.key,
            id: node.id,
            home: home.unwrap_or(node.certified.fabric),
            certified: vec![node.certified],
            role: Role::Node,
            ca: Some(Arc::new(ca)),
            admin_identity: Some(admin_identity),
            new,
        }
    }

    /// Without the former fabrics whose CA has ended: no client of them can be verified any more.
    fn without_ended(mut self, now: SystemTime) -> Self {
        let former = self.certified.split_off(self.certified.len().min(1));
        let goes_on = |it: &Certified| subject::not_after(&it.ca).is_ok_and(|end| end > now);
        self.certified.extend(former.into_iter().filter(goes_on));
        self
    }

    /// Refuses to make a new node beside records of an earlier node, whose leases would be forgotten.
    ///
    /// # Errors
    /// If there is no `node.identity`.
    pub fn refuse_lost_node(state_dir: &Path) -> Result<(), IdentityError> {
        match state_dir.join(NODE).exists() {
            true => Ok(()),
            false => Err(lost_node(state_dir)),
        }
    }

    /// The node's own authority, which answers IDENTITY_ISSUE. `None`: the node has joined a fabric, whose authority
    /// signs elsewhere.
    #[must_use]
    pub fn ca(&self) -> Option<&Arc<Ca>> {
        self.ca.as_ref()
    }

    /// Whose identity it is: a node's, or a scheduler's.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The key of the node.
    #[must_use]
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// The node's certificates: in the present fabric first, then in the former ones. Never empty.
    #[must_use]
    pub fn certified(&self) -> &[Certified] {
        &self.certified
    }

    /// The present fabric.
    #[must_use]
    pub fn id(&self) -> FabricId {
        self.certified.first().map_or(self.home, |it| it.fabric)
    }

    /// The end of the node's certificate in the present fabric.
    #[must_use]
    pub fn not_after(&self) -> Option<SystemTime> {
        subject::not_after(&self.certified.first()?.certificate).ok()
    }

    /// SHA-256 of the node's SubjectPublicKeyInfo.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.id
    }

    /// Path of the first operator's identity. `None`: the node has joined a fabric, whose operators come with it.
    #[must_use]
    pub fn admin_identity(&self) -> Option<&Path> {
        self.admin_identity.as_deref()
    }

    /// Whether this call made the fabric.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// The caller with this certificate, whose chain, dates and use are verified against one of the node's CAs.
    ///
    /// # Errors
    /// If the certificate names nobody.
    pub fn peer(&self, certificate: &CertificateDer<'_>) -> Result<Peer, crate::BadCertificate> {
        let Subject {
            name,
            role,
            not_after,
        } = Subject::from_certificate(certificate)?;
        let fabric = self.signer(certificate)?;
        let labels = match role {
            Role::Node => subject::labels(certificate)?,
            Role::Tenant | Role::Operator | Role::Scheduler => Vec::new(),
        };
        Ok(Peer {
            principal: Principal {
                tenant: tenant_key(&name, fabric, self.home).into(),
                role,
            },
            key: subject::node_id(&subject::public_key_info(certificate)?),
            labels,
            fabric,
            not_after,
        })
    }

    /// A tenant of this node as the others of its present fabric name it: `NAME` in that fabric, `NAME@FINGERPRINT` in
    /// another one.
    #[must_use]
    pub fn tenant_in_fabric(&self, tenant: &str) -> String {
        let now = self.id();
        match tenant.split_once('@') {
            None => tenant_key(tenant, self.home, now),
            Some((name, fabric)) if fabric.parse() == Ok(now) => name.to_owned(),
            Some(_) => tenant.to_owned(),
        }
    }

    /// The fabric whose CA has signed the certificate. The names of two CAs may be the same: only the signature tells.
    fn signer(&self, certificate: &CertificateDer<'_>) -> Result<FabricId, crate::BadCertificate> {
        if let [only] = &*self.certified {
            return Ok(only.fabric);
        }
        for it in &self.certified {
            if subject::is_signed_by(certificate, &it.ca)? {
                return Ok(it.fabric);
            }
        }
        Err(crate::BadCertificate::Signer)
    }
}

/// Key and certificate of a node, from its identity file.
struct Node {
    key: NodeKey,
    id: NodeId,
    certified: Certified,
}

fn open_ca(state_dir: &Path, now: SystemTime) -> Result<(Ca, bool), IdentityError> {
    if let Some(ca) = read_ca(state_dir, now)? {
        return Ok((ca, false));
    }
    let path = state_dir.join(CA_KEY);
    let text = Ca::generate(now).map_err(making(&path))?;
    let ca = Ca::from_pem(&text).map_err(making(&path))?;
    write(&path, &text)?;
    Ok((ca, true))
}

/// Reads the CA of a state directory. `None`: the directory has no fabric yet. Where identities of an old CA exist, a
/// missing CA is an error: with a new CA their holders would be locked out without notice.
fn read_ca(state_dir: &Path, now: SystemTime) -> Result<Option<Ca>, IdentityError> {
    let path = state_dir.join(CA_KEY);
    let bad = damaged(&path, CA_REMEDY);
    let Some(text) = read(&path)? else {
        let mut others = [CA, NODE, ADMIN].iter();
        return match others.find(|name| state_dir.join(name).exists()) {
            Some(name) => Err(bad(FileProblem::MissingBeside(name))),
            None => Ok(None),
        };
    };
    let ca = Ca::from_pem(&text).map_err(bad)?;
    match ca.not_after() > now {
        true => Ok(Some(ca)),
        false => Err(damaged(&path, EXPIRED_REMEDY)(FileProblem::Expired)),
    }
}

/// Refuses the directory of a fabric of many nodes in the place of a state directory.
fn refuse_directory(state_dir: &Path) -> Result<(), IdentityError> {
    match state_dir.join(directory::SCHEDULER).exists() {
        true => Err(damaged(
            state_dir,
            "name a directory of the node's own with --state-dir",
        )(FileProblem::FabricDirectory)),
        false => Ok(()),
    }
}

const CA_REMEDY: &str = "restore the file from a backup, or joined.pem if the node had joined a fabric; or, if the key is lost, let `fabricbiosd renew-ca --new-key` make a new \
    CA for the same node: every identity issued so far is void then, and node id, leases and pools stay";

const EXPIRED_REMEDY: &str =
    "run `fabricbiosd renew-ca`: node id, leases, pools and the key of the CA stay";

/// Checks `ca.pem`, a copy of the certificate for people. `false`: the copy does not exist yet.
fn is_published(state_dir: &Path, ca: &Ca) -> Result<bool, IdentityError> {
    let path = state_dir.join(CA);
    let Some(text) = read(&path)? else {
        return Ok(false);
    };
    let same = pem::first_certificate(text.as_bytes()).is_ok_and(|c| c == *ca.certificate());
    if same {
        return Ok(true);
    }
    Err(damaged(&path, COPY_REMEDY)(FileProblem::OtherCopy))
}

const COPY_REMEDY: &str = "if ca-key.pem is this node's, delete this copy, which is written again at the next start; else restore ca-key.pem";

const NODE_REMEDY: &str = "restore the file and ca-key.pem from one backup; if this file is this node's, `fabricbiosd renew-ca`, or `renew-ca --new-key` if that was interrupted, \
    makes them fit and keeps the node id";

const LOST_NODE_REMEDY: &str = "restore the file from a backup: its key is the node's id; or, to begin as a new node, whose leases are over and whose \
    pools are withheld until --force, move ca.pem, admin.identity and journal.redb away";

fn open_node(state_dir: &Path, ca: &Ca, now: SystemTime) -> Result<Node, IdentityError> {
    if let Some(node) = read_node(state_dir, ca)? {
        return Ok(node);
    }
    let path = state_dir.join(NODE);
    let key = SecretKey::generate().map_err(making(&path))?;
    make_node(&path, &key, ca, now)
}

/// Reads the node's identity. `None`: the directory has had no node yet, or its first start was interrupted.
fn read_node(state_dir: &Path, ca: &Ca) -> Result<Option<Node>, IdentityError> {
    let path = state_dir.join(NODE);
    let Some(text) = read(&path)? else {
        let has_had_node = [CA, ADMIN].iter().any(|it| state_dir.join(it).exists());
        return match has_had_node {
            true => Err(lost_node(state_dir)),
            false => Ok(None),
        };
    };
    let node = node(&text).and_then(|node| match node.certified.ca == *ca.certificate() {
        true => Ok(node),
        false => Err(FileProblem::OtherFabric),
    });
    node.map(Some).map_err(damaged(&path, NODE_REMEDY))
}

fn lost_node(state_dir: &Path) -> IdentityError {
    damaged(&state_dir.join(NODE), LOST_NODE_REMEDY)(FileProblem::NodeMissing)
}

/// Writes the identity of the node with this key; the node id is computed from the key.
fn make_node(
    path: &Path,
    key: &SecretKey,
    ca: &Ca,
    now: SystemTime,
) -> Result<Node, IdentityError> {
    let member = Member::Node(Vec::new());
    let certificate = ca.certify(key, &member, None, now).map_err(making(path))?;
    let text = identity_pem(&certificate, key, ca.certificate_pem());
    let node = node(&text).map_err(making(path))?;
    write(path, &text)?;
    Ok(node)
}

/// Reads the text of a node's identity.
fn node(text: &str) -> Result<Node, FileProblem> {
    member(text, Role::Node)
}

/// Reads the text of the identity of a member with this role.
fn member(text: &str, role: Role) -> Result<Node, FileProblem> {
    let (certificate, ca, key) = pem::parts(text.as_bytes())?;
    let info = key_of(&certificate, role)?;
    check_pair(&certificate, &key)?;
    Ok(Node {
        key: NodeKey(key),
        id: subject::node_id(&info),
        certified: Certified::new(certificate, ca)?,
    })
}

/// Checks that TLS accepts key and certificate, and that they belong together.
fn check_pair(
    certificate: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth();
    let chain = vec![certificate.clone()];
    builder.with_single_cert(chain, key.clone_key()).map(drop)
}

/// The public key of a node's certificate.
fn key_of_node(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, FileProblem> {
    key_of(certificate, Role::Node)
}

/// The public key of a certificate, which must be of this role.
fn key_of(certificate: &CertificateDer<'_>, role: Role) -> Result<Vec<u8>, FileProblem> {
    match Subject::from_certificate(certificate)?.role {
        found if found == role => Ok(subject::public_key_info(certificate)?),
        _ if role == Role::Scheduler => Err(FileProblem::NotAScheduler),
        _ => Err(FileProblem::NotANode),
    }
}

const ADMIN_REMEDY: &str = "move the file away: the next start makes a new one";

fn open_admin(path: &Path, ca: &Ca, now: SystemTime) -> Result<(), IdentityError> {
    match read_admin(path, ca)? {
        Some(end) if end > now + ADMIN_LEFT_MIN => Ok(()),
        _ => make_admin(path, ca, now),
    }
}

/// Reads the end of the first operator's identity.
fn read_admin(path: &Path, ca: &Ca) -> Result<Option<SystemTime>, IdentityError> {
    let text = read(path)?;
    let end = text.map(|text| admin_end(&text, ca)).transpose();
    end.map_err(damaged(path, ADMIN_REMEDY))
}

pub(crate) fn make_admin(path: &Path, ca: &Ca, now: SystemTime) -> Result<(), IdentityError> {
    let key = SecretKey::generate().map_err(making(path))?;
    let csr = CertificateParams::default()
        .serialize_request(&key)
        .map_err(making(path))?;
    let issued = ca
        .issue(&ca::first_operator(csr.der().to_vec()), now)
        .map_err(making(path))?;
    let Reply::Issued {
        certificate_pem, ..
    } = issued
    else {
        return Err(making(path)("the CA answered with something else"));
    };
    write(
        path,
        &identity_pem(&certificate_pem, &key, ca.certificate_pem()),
    )
}

fn admin_end(text: &str, ca: &Ca) -> Result<SystemTime, FileProblem> {
    let (certificate, _key) = pem::identity(text.as_bytes(), ca.certificate())?;
    Ok(operator(&certificate)?.not_after)
}

fn operator(certificate: &CertificateDer<'_>) -> Result<Subject, FileProblem> {
    let subject = Subject::from_certificate(certificate)?;
    match subject.role {
        Role::Operator => Ok(subject),
        Role::Tenant | Role::Node | Role::Scheduler => Err(FileProblem::NotAnOperator),
    }
}

/// One PEM text: certificate, key, CA certificate.
pub(crate) fn identity_pem(
    certificate_pem: &str,
    key: &SecretKey,
    ca_pem: &str,
) -> Zeroizing<String> {
    Zeroizing::new(format!("{certificate_pem}{}{ca_pem}", *key.pem()))
}

/// Reads a file; `None`: it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Zeroizing<String>>, IdentityError> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    durable::write_private(path, text.as_bytes()).map_err(io_error("write", path))
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> IdentityError {
    move |error| IdentityError::Io {
        action,
        path: path.to_owned(),
        error,
    }
}

pub(crate) fn damaged(path: &Path, remedy: &'static str) -> impl Fn(FileProblem) -> IdentityError {
    move |what| IdentityError::Damaged {
        path: path.to_owned(),
        what,
        remedy,
    }
}

pub(crate) fn making<E: ToString>(path: &Path) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Making {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
