//! Joining a fabric of many nodes: the same key, and so the same node id, with a certificate of the fabric's CA.
//!
//! `joined.pem` says which fabric the node belongs to, and keeps the certificates of former fabrics, whose clients reach
//! their live leases with them. `node.identity` is written after it and decides: until it has the certificate of the new
//! CA, the node is where it was. Then the key of the node's own CA and the identity of its operator go.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fabricbios_wire::Role;
use rustls::pki_types::CertificateDer;

use super::{
    ADMIN, CA, CA_KEY, Fabric, NODE, Node, damaged, identity_pem, io_error, key_of_node, lost_node,
    making, node, read, write,
};
use crate::{
    Certified, FabricDirectory, FabricId, FileProblem, IdentityError, Label, Member, ca::SecretKey,
    durable, pem, subject,
};

pub(super) const JOINED: &str = "joined.pem";
/// Most former fabrics.
const FORMER_MAX: usize = 7;
/// A start with the fabric's directory renews a certificate that is valid for less than this.
const LEFT_MIN: Duration = Duration::from_secs(30 * 86_400);

/// The result of [`Fabric::accept`].
#[derive(Debug)]
pub struct Accepted {
    /// The node's identity now.
    pub fabric: Fabric,
    /// The fabric that the node has left. Its identities keep their live leases.
    pub left: Option<FabricId>,
    /// The labels in the certificate.
    pub labels: Vec<Label>,
    /// The join holds, and this step after it failed; the next start, or the same answer again, repeats it.
    pub unfinished: Option<IdentityError>,
}

impl Fabric {
    /// The request of the node in this state directory for a certificate: PKCS #10, as PEM.
    ///
    /// # Errors
    /// If the directory has no node, or its identity cannot be used.
    pub fn request(state_dir: &Path) -> Result<String, IdentityError> {
        let path = state_dir.join(NODE);
        let text = read(&path)?.ok_or_else(|| no_node(&path))?;
        node(&text).map_err(damaged(&path, "restore the file from a backup"))?;
        let key = pem::key_pair(&text).map_err(damaged(&path, "restore the file from a backup"))?;
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&key);
        request.and_then(|it| it.pem()).map_err(making(&path))
    }

    /// Joins the fabric whose CA has signed `answer`: the node's new certificate, then that CA's, as PEM. The same answer
    /// again changes nothing. The caller holds the lock of the directory. After an interruption, repeat the call.
    ///
    /// # Errors
    /// If the directory has no node, the certificate is not for its key, has ended, or is not that of a node, a file of
    /// another CA would have to be deleted, or the node's files cannot be written: the node has not joined then.
    pub fn accept(
        state_dir: &Path,
        answer: &str,
        now: SystemTime,
    ) -> Result<Accepted, IdentityError> {
        let (before, new) = Self::with_answer(state_dir, answer, now)?;
        let labels = subject::labels(&new.certificate)
            .map_err(|error| IdentityError::Answer { what: error.into() })?;
        let left = Some(before.id()).filter(|it| *it != new.fabric);
        if before.ca.is_none() && before.certified.first() == Some(&new) {
            // The node has joined already, whatever is left to do.
            let unfinished = finish(state_dir, &before).err();
            return Ok(Accepted {
                fabric: before,
                left,
                labels,
                unfinished,
            });
        }
        let former = before.former_after(&new);
        let path = state_dir.join(NODE);
        let text = read(&path)?.ok_or_else(|| no_node(&path))?;
        let key = pem::key_pair(&text).map_err(damaged(&path, "restore the file from a backup"))?;
        let (fabric, finished) = settle(state_dir, &key, new, former, before.home)?;
        Ok(Accepted {
            fabric: fabric.without_ended(now),
            left,
            labels,
            unfinished: finished.err(),
        })
    }

    /// Opens the identity of a node that the fabric of `directory` certifies, and makes or renews it if needed. The
    /// caller holds the lock of the state directory.
    ///
    /// # Errors
    /// As [`Fabric::open_or_create`] and [`Fabric::accept`]; or if both directories are one.
    pub fn open_certified(
        state_dir: &Path,
        directory: &FabricDirectory,
        now: SystemTime,
    ) -> Result<Accepted, IdentityError> {
        durable::make_private_dir(state_dir).map_err(io_error("create", state_dir))?;
        directory.refuse_as_state(state_dir)?;
        let path = state_dir.join(NODE);
        let Some(node) = Self::read(state_dir, now)? else {
            let key = SecretKey::generate().map_err(making(&path))?;
            let new = certify(directory, &key, Vec::new(), &path, now)?;
            let home = new.fabric;
            let (fabric, finished) = settle(state_dir, &key, new, Vec::new(), home)?;
            finished?;
            return Ok(Accepted {
                fabric: Self {
                    new: true,
                    ..fabric
                },
                left: None,
                labels: Vec::new(),
                unfinished: None,
            });
        };
        let present = node
            .certified
            .first()
            .filter(|it| it.fabric == directory.id());
        if let Some(it) = present
            && subject::not_after(&it.certificate).is_ok_and(|end| end > now + LEFT_MIN)
        {
            finish(state_dir, &node)?;
            let labels = subject::labels(&it.certificate).unwrap_or_default();
            return Ok(Accepted {
                fabric: node,
                left: None,
                labels,
                unfinished: None,
            });
        }
        let labels = present.and_then(|it| subject::labels(&it.certificate).ok());
        let labels = labels.unwrap_or_default();
        let left = Some(node.id()).filter(|it| *it != directory.id());
        let text = read(&path)?.ok_or_else(|| no_node(&path))?;
        let key = pem::key_pair(&text).map_err(damaged(&path, "restore the file from a backup"))?;
        let new = certify(directory, &key, labels.clone(), &path, now)?;
        let former = node.former_after(&new);
        let (fabric, finished) = settle(state_dir, &key, new, former, node.home)?;
        finished?;
        Ok(Accepted {
            fabric: fabric.without_ended(now),
            left,
            labels,
            unfinished: None,
        })
    }

    /// Checks that the node in this state directory can take the answer, and returns the fabric of the answer. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Fabric::accept`].
    pub fn check_accept(
        state_dir: &Path,
        answer: &str,
        now: SystemTime,
    ) -> Result<FabricId, IdentityError> {
        let (_, new) = Self::with_answer(state_dir, answer, now)?;
        Ok(new.fabric)
    }

    /// The node in this state directory, and the certificates of an answer for it.
    fn with_answer(
        state_dir: &Path,
        answer: &str,
        now: SystemTime,
    ) -> Result<(Self, Certified), IdentityError> {
        let node = Self::read(state_dir, now)?;
        let node = node.ok_or_else(|| no_node(&state_dir.join(NODE)))?;
        let new = node.check_answer(answer, now);
        let new = new.map_err(|what| IdentityError::Answer { what })?;
        Ok((node, new))
    }

    /// The fabric of many nodes that the node has joined.
    ///
    /// # Errors
    /// If a file of the node cannot be used.
    pub fn joined(state_dir: &Path) -> Result<Option<FabricId>, IdentityError> {
        Ok(match open(state_dir)? {
            Past::Joined(fabric) => Some(fabric.id()),
            Past::Alone { .. } => None,
        })
    }

    /// The certificates in former fabrics, once `new` is the present one: the latest ones.
    fn former_after(&self, new: &Certified) -> Vec<Certified> {
        // One of the same fabric counts until the new one does.
        let others = self.certified.iter().filter(|it| *it != new);
        others.take(FORMER_MAX).cloned().collect()
    }

    /// The certificates of an answer, if they are for this node.
    fn check_answer(&self, answer: &str, now: SystemTime) -> Result<Certified, FileProblem> {
        let all = pem::certificates(answer.as_bytes())?;
        let Ok([certificate, ca]) = <[_; 2]>::try_from(all) else {
            let found = pem::certificates(answer.as_bytes())?.len();
            return Err(FileProblem::Certificates(found));
        };
        let id = subject::node_id(&key_of_node(&certificate)?);
        if id != self.id {
            return Err(FileProblem::OtherNode {
                certificate: id,
                node: self.id,
            });
        }
        if let Some(what) = subject::lacks_of_ca(&ca)? {
            return Err(FileProblem::NotACa(what));
        }
        let new = Certified::new(certificate, ca)?;
        new.verify(now)?;
        Ok(new)
    }
}

fn no_node(path: &Path) -> IdentityError {
    damaged(
        path,
        "name the state directory of a node with --state-dir; its first start with `fabricbiosd control-server` makes the file",
    )(FileProblem::Missing)
}

fn certify(
    directory: &FabricDirectory,
    key: &SecretKey,
    labels: Vec<Label>,
    path: &Path,
    now: SystemTime,
) -> Result<Certified, IdentityError> {
    let certificate = directory
        .ca()
        .certify(key, &Member::Node(labels), None, now);
    let certificate = certificate.map_err(making(path))?;
    let parsed = pem::first_certificate(certificate.as_bytes());
    let new = parsed.and_then(|it| Ok(Certified::new(it, directory.ca().certificate().clone())?));
    new.map_err(making(path))
}

/// Makes the node one of the fabric of `new`, and returns how [`finish`] ended. An error comes before the rename of
/// `node.identity`: the node is where it was.
fn settle(
    state_dir: &Path,
    key: &SecretKey,
    new: Certified,
    former: Vec<Certified>,
    home: FabricId,
) -> Result<(Fabric, Result<(), IdentityError>), IdentityError> {
    let path = state_dir.join(NODE);
    let ca_pem = pem::of_certificate(&new.ca);
    let mut text = format!("home {home} former {}\n{ca_pem}", former.len());
    for it in &former {
        text.push_str(&pem::of_certificate(&it.certificate));
        text.push_str(&pem::of_certificate(&it.ca));
    }
    let identity = identity_pem(&pem::of_certificate(&new.certificate), key, &ca_pem);
    let fabric = joined(node(&identity).map_err(making(&path))?, former, home);
    Remaining::of(state_dir, &fabric)?;
    write(&state_dir.join(JOINED), &text)?;
    let finished = match write(&path, &identity) {
        Ok(()) => finish(state_dir, &fabric),
        // The file is renamed, and the directory could not be synced.
        Err(error) if read(&path).is_ok_and(|it| it.as_ref() == Some(&identity)) => Err(error),
        Err(error) => return Err(error),
    };
    Ok((fabric, finished))
}

/// The contents of `joined.pem`.
struct Joined {
    home: FabricId,
    ca: CertificateDer<'static>,
    former: Vec<Certified>,
}

/// What `joined.pem` says of a node.
pub(super) enum Past {
    /// It is in a fabric of many nodes.
    Joined(Box<Fabric>),
    /// It has not joined one, or this was interrupted before it held, or it has left. `home`: the fabric of its first start, if
    /// that is known to be another one than it has now.
    Alone { home: Option<FabricId> },
}

/// Reads the identity of a node that has joined a fabric.
pub(super) fn open(state_dir: &Path) -> Result<Past, IdentityError> {
    let path = state_dir.join(JOINED);
    let Some(text) = read(&path)? else {
        return Ok(Past::Alone { home: None });
    };
    let Joined { home, ca, former } = parse(&text).map_err(damaged(&path, REMEDY))?;
    let node_path = state_dir.join(NODE);
    let Some(text) = read(&node_path)? else {
        // A first start writes this file last.
        return match state_dir.join(CA).exists() {
            true => Err(lost_node(state_dir)),
            false => Ok(Past::Alone { home: None }),
        };
    };
    let node = node(&text).map_err(damaged(&node_path, REMEDY))?;
    if FabricId::of_ca(&ca).is_ok_and(|it| it == node.certified.fabric) {
        return Ok(Past::Joined(Box::new(joined(node, former, home))));
    }
    let own = read(&state_dir.join(CA_KEY))?;
    let own = own.and_then(|text| pem::first_certificate(text.as_bytes()).ok());
    if own.is_some_and(|ca| FabricId::of_ca(&ca).is_ok_and(|it| it == node.certified.fabric)) {
        return Ok(Past::Alone { home: Some(home) });
    }
    let (before, others): (Vec<_>, _) = former.into_iter().partition(|it| *it == node.certified);
    match before.is_empty() {
        true => Err(damaged(&node_path, REMEDY)(FileProblem::OtherFabric)),
        false => Ok(Past::Joined(Box::new(joined(node, others, home)))),
    }
}

fn joined(node: Node, former: Vec<Certified>, home: FabricId) -> Fabric {
    let fabric = node.certified.fabric;
    let mut certified = vec![node.certified];
    certified.extend(former.into_iter().filter(|it| it.fabric != fabric));
    Fabric {
        key: node.key,
        id: node.id,
        certified,
        home,
        role: Role::Node,
        ca: None,
        admin_identity: None,
        new: false,
    }
}

const REMEDY: &str = "restore the file from a backup of this state directory; or `fabricbiosd renew-ca --new-key` makes the node \
    one with a CA of its own, with the same node id, which can join again";

fn parse(text: &str) -> Result<Joined, FileProblem> {
    let first = text.lines().next().unwrap_or_default();
    let first = first
        .strip_prefix("home ")
        .and_then(|it| it.split_once(" former "));
    let first = first.and_then(|(home, n)| Some((home.parse().ok()?, n.parse::<usize>().ok()?)));
    let (home, count) = first.ok_or(FileProblem::FirstLine)?;
    let all = pem::certificates(text.as_bytes())?;
    let (Some((ca, pairs)), found) = (all.split_first(), all.len()) else {
        return Err(FileProblem::Certificates(0));
    };
    let (pairs, rest) = pairs.as_chunks::<2>();
    if pairs.len() != count || !rest.is_empty() {
        return Err(FileProblem::Former { count, found });
    }
    let former = pairs.iter().cloned();
    let former = former.map(|[certificate, ca]| Certified::new(certificate, ca));
    let former = former.collect::<Result<_, _>>()?;
    let ca = ca.clone();
    Ok(Joined { home, ca, former })
}

/// The fabric of the first start, as `joined.pem` has it, also beside files that do not fit.
pub(super) fn home(state_dir: &Path) -> Option<FabricId> {
    let text = read(&state_dir.join(JOINED)).ok().flatten()?;
    let first = text.lines().next()?.strip_prefix("home ")?;
    first.split_once(' ')?.0.parse().ok()
}

/// Brings the other files in line with `node.identity`: the key of the node's own CA and the identity of its operator
/// are of no use any more.
pub(super) fn finish(state_dir: &Path, joined: &Fabric) -> Result<(), IdentityError> {
    let remaining = Remaining::of(state_dir, joined)?;
    if let Some(ca) = remaining.copy {
        write(&state_dir.join(CA), &pem::of_certificate(ca))?;
    }
    remaining.useless.iter().try_for_each(|path| remove(path))
}

/// What is left to do for a node that has joined.
struct Remaining<'a> {
    /// The certificate that `ca.pem` should have.
    copy: Option<&'a CertificateDer<'static>>,
    /// Files of a CA that the node has left.
    useless: Vec<PathBuf>,
}

impl<'a> Remaining<'a> {
    /// # Errors
    /// If a file is of a CA that the node has never had, which nothing here deletes, or cannot be read.
    fn of(state_dir: &Path, joined: &'a Fabric) -> Result<Self, IdentityError> {
        let copy = read(&state_dir.join(CA))?;
        let copy = copy.and_then(|text| pem::first_certificate(text.as_bytes()).ok());
        let current = joined.certified.first().map(|it| &it.ca);
        let mut useless = Vec::new();
        for name in [CA_KEY, ADMIN] {
            let path = state_dir.join(name);
            if is_useless(&path, joined)? {
                useless.push(path);
            }
        }
        Ok(Self {
            copy: current.filter(|it| copy.as_ref() != Some(it)),
            useless,
        })
    }
}

/// Whether there is such a file, of a CA that the node has left. The CA of a key and that of an identity are the last
/// certificate of the file.
fn is_useless(path: &Path, joined: &Fabric) -> Result<bool, IdentityError> {
    let Some(text) = read(path)? else {
        return Ok(false);
    };
    let foreign = damaged(path, "it is not of this node: move it away");
    let all = pem::certificates(text.as_bytes()).map_err(&foreign)?;
    let ca = all
        .last()
        .ok_or_else(|| foreign(FileProblem::Certificates(0)))?;
    let fabric = FabricId::of_ca(ca).map_err(|error| foreign(error.into()))?;
    let mut former = joined.certified.iter().skip(1);
    match former.any(|it| it.fabric == fabric) {
        true => Ok(true),
        false => Err(foreign(FileProblem::OtherFabric)),
    }
}

fn remove(path: &Path) -> Result<(), IdentityError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
