//! The files of the fabric. The first start makes them; each later start reads them.
//!
//! The first start writes `ca-key.pem` (key and certificate of the CA) first, then `node.identity`, then `ca.pem` and
//! `admin.identity`. A later start makes the last two if they are missing, so it finishes an interrupted first start.
//! The order also shows whether a missing `node.identity` was lost or never existed. A damaged file is reported and
//! never replaced.

mod renew;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_wire::{NodeId, Reply, Role};
use rcgen::CertificateParams;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    Ca, FileProblem, IdentityError, Peer,
    ca::{self, SecretKey},
    durable, principal, tls,
};

const CA_KEY: &str = "ca-key.pem";
const CA: &str = "ca.pem";
const NODE: &str = "node.identity";
const ADMIN: &str = "admin.identity";
/// The next start replaces an operator identity that is valid for less than this.
const ADMIN_LEFT_MIN: Duration = Duration::from_secs(30 * 86_400);

/// Certificate authority, node and first operator of one state directory.
#[derive(Debug)]
pub struct Fabric {
    ca: Arc<Ca>,
    node: NodeKeys,
    admin_identity: PathBuf,
    new: bool,
}

/// Key and certificate of the node.
pub struct NodeKeys {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: Zeroizing<PrivateKeyDer<'static>>,
    id: NodeId,
}

impl std::fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeKeys")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Fabric {
    /// Opens the fabric of a state directory and makes missing files. The caller holds the lock of the directory, so
    /// that no other daemon does this at the same time.
    pub fn open_or_create(state_dir: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        durable::make_private_dir(state_dir).map_err(io_error("create", state_dir))?;
        let (ca, new) = open_ca(state_dir, now)?;
        let is_published = is_published(state_dir, &ca)?;
        let node = open_node(state_dir, &ca, now)?;
        if !is_published {
            write(&state_dir.join(CA), ca.certificate_pem())?;
        }
        let admin_identity = state_dir.join(ADMIN);
        open_admin(&admin_identity, &ca, now)?;
        Ok(Self {
            ca: Arc::new(ca),
            node,
            admin_identity,
            new,
        })
    }

    /// Checks the files as [`Fabric::open_or_create`] does, and changes nothing. `None`: the directory has no node yet.
    pub fn check(state_dir: &Path, now: SystemTime) -> Result<Option<NodeId>, IdentityError> {
        let Some(ca) = read_ca(state_dir, now)? else {
            return Ok(None);
        };
        is_published(state_dir, &ca)?;
        let node = read_node(state_dir, &ca)?;
        read_admin(&state_dir.join(ADMIN), &ca)?;
        Ok(node.map(|it| it.id))
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

    /// The authority, which answers IDENTITY_ISSUE.
    pub fn ca(&self) -> Arc<Ca> {
        Arc::clone(&self.ca)
    }

    /// The keys of the node.
    pub fn node(&self) -> &NodeKeys {
        &self.node
    }

    /// SHA-256 of the node's SubjectPublicKeyInfo.
    pub fn node_id(&self) -> NodeId {
        self.node.id
    }

    /// Path of the first operator's identity.
    pub fn admin_identity(&self) -> &Path {
        &self.admin_identity
    }

    /// Whether this call made the fabric.
    pub fn is_new(&self) -> bool {
        self.new
    }
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

const CA_REMEDY: &str = "restore the file from a backup; or, if the key is lost, let `fabricbiosd renew-ca --new-key` make a new \
    CA for the same node: every identity issued so far is void then, and node id, leases and pools stay";

const EXPIRED_REMEDY: &str =
    "run `fabricbiosd renew-ca`: node id, leases, pools and the key of the CA stay";

/// Checks `ca.pem`, a copy of the certificate for people. `false`: the copy does not exist yet.
fn is_published(state_dir: &Path, ca: &Ca) -> Result<bool, IdentityError> {
    let path = state_dir.join(CA);
    let Some(text) = read(&path)? else {
        return Ok(false);
    };
    let same = tls::first_certificate(text.as_bytes()).is_ok_and(|c| c == *ca.certificate());
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

fn open_node(state_dir: &Path, ca: &Ca, now: SystemTime) -> Result<NodeKeys, IdentityError> {
    if let Some(keys) = read_node(state_dir, ca)? {
        return Ok(keys);
    }
    let path = state_dir.join(NODE);
    let key = SecretKey::generate().map_err(making(&path))?;
    make_node(&path, &key, ca, now)
}

/// Reads the node's keys. `None`: the directory has had no node yet, or its first start was interrupted.
fn read_node(state_dir: &Path, ca: &Ca) -> Result<Option<NodeKeys>, IdentityError> {
    let path = state_dir.join(NODE);
    let Some(text) = read(&path)? else {
        let has_had_node = [CA, ADMIN].iter().any(|it| state_dir.join(it).exists());
        return match has_had_node {
            true => Err(lost_node(state_dir)),
            false => Ok(None),
        };
    };
    node_keys(&text, ca)
        .map(Some)
        .map_err(damaged(&path, NODE_REMEDY))
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
) -> Result<NodeKeys, IdentityError> {
    let certificate = ca.issue_node(key, now).map_err(making(path))?;
    let text = identity_pem(&certificate, key, ca);
    let keys = node_keys(&text, ca).map_err(making(path))?;
    write(path, &text)?;
    Ok(keys)
}

fn node_keys(text: &str, ca: &Ca) -> Result<NodeKeys, FileProblem> {
    let (certificate, key) = tls::identity(text.as_bytes(), ca.certificate())?;
    let info = key_of_node(&certificate)?;
    let id = NodeId(Sha256::digest(&info).into());
    let keys = NodeKeys {
        certificate,
        key,
        id,
    };
    tls::check_server_keys(&keys)?;
    Ok(keys)
}

/// The public key of a node's certificate.
fn key_of_node(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, FileProblem> {
    match principal::is_node(certificate)? {
        true => Ok(principal::public_key_info(certificate)?),
        false => Err(FileProblem::NotANode),
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

fn make_admin(path: &Path, ca: &Ca, now: SystemTime) -> Result<(), IdentityError> {
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
    write(path, &identity_pem(&certificate_pem, &key, ca))
}

fn admin_end(text: &str, ca: &Ca) -> Result<SystemTime, FileProblem> {
    let (certificate, _key) = tls::identity(text.as_bytes(), ca.certificate())?;
    Ok(operator(&certificate)?.not_after)
}

fn operator(certificate: &CertificateDer<'_>) -> Result<Peer, FileProblem> {
    let peer = Peer::from_certificate(certificate)?;
    match peer.principal.role {
        Role::Operator => Ok(peer),
        Role::Tenant => Err(FileProblem::NotAnOperator),
    }
}

/// One PEM text: certificate, key, CA certificate.
fn identity_pem(certificate_pem: &str, key: &SecretKey, ca: &Ca) -> Zeroizing<String> {
    let (key, ca) = (key.pem(), ca.certificate_pem());
    Zeroizing::new(format!("{certificate_pem}{}{ca}", *key))
}

/// Reads a file; `None`: it does not exist.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>, IdentityError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), IdentityError> {
    durable::write_private(path, text.as_bytes()).map_err(io_error("write", path))
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> IdentityError {
    move |error| IdentityError::Io {
        action,
        path: path.to_owned(),
        error,
    }
}

fn damaged(path: &Path, remedy: &'static str) -> impl Fn(FileProblem) -> IdentityError {
    move |what| IdentityError::Damaged {
        path: path.to_owned(),
        what,
        remedy,
    }
}

fn making<E: ToString>(path: &Path) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Making {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
