//! The marker file of a directory: identity, node, and the number of the latest grant. The process that has locked the
//! file has the pool.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base16ct::{lower::encode_string, mixed::decode_vec};
use fabricbios_helper::Supervisor;
use fabricbios_lease::{FORMAT, OtherFormat};
use fabricbios_wire::NodeId;
use nix::unistd::{AccessFlags, access};

use super::volume::file_flaw;
use crate::error::{At, Error};
use crate::lock::lock;
use crate::wipe::{PoolCall, run};
use crate::{PoolConfig, new_identity};

const NAME: &str = ".fabricbios-pool";
/// Prefix of the first line; the number of the format follows.
const FIRST_WORD: &str = "fabricbios-pool ";
/// Longer than any marker.
const BYTES_MAX: u64 = 4096;

#[derive(Debug)]
pub(super) struct Marker {
    pub(super) path: PathBuf,
    /// Whether the pool was taken over from another node.
    pub(super) is_taken_over: bool,
    text: Mutex<Text>,
    /// The open file, which holds the lock.
    _file: File,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    identity: [u8; 16],
    node: NodeId,
    /// Number of the latest grant of the node.
    grants: u64,
}

impl Marker {
    /// Locks the marker of the directory. Writes a new marker if there is neither a marker nor a volume, or if `force`
    /// takes over the pool of another node.
    pub(super) fn take(
        directory: &Path,
        config: &PoolConfig,
        has_volumes: bool,
    ) -> Result<Self, Error> {
        let (node, force) = (&config.node_id, config.force);
        let may_begin = config.may_begin && (force || !has_volumes);
        let path = directory.join(NAME);
        let mut file = fit(open(&path, may_begin), &path, has_volumes)?;
        lock(&file).at(&path)?;
        let stored = read_own(&mut file, &path)?;
        if stored.is_empty() && !may_begin {
            let why = nobody(has_volumes);
            return Err(Error::Setting(format!("empty; {why}"))).at(&path);
        }
        let text = Text::settle(&stored, node, force).at(&path)?;
        let found = Text::parse(&stored);
        let is_ours = found.as_ref().is_some_and(|found| found.node == text.node);
        if !stored.is_empty() && !is_ours {
            let of = found.as_ref().map_or_else(
                || "an unknown node".to_owned(),
                |found| found.node.to_string(),
            );
            tracing::warn!(pool = %directory.display(), %of, "--force: taken although it was another node's; its volumes are lost");
        }
        if found.as_ref() != Some(&text) {
            let made = put(&file, &text.to_text()).and_then(|()| File::open(directory)?.sync_all());
            made.at(&path)?;
        }
        Ok(Self {
            path,
            is_taken_over: found.is_some_and(|found| found.node != text.node),
            text: Mutex::new(text),
            _file: file,
        })
    }

    pub(super) fn identity(&self) -> [u8; 16] {
        self.text().identity
    }

    pub(super) fn grants(&self) -> u64 {
        self.text().grants
    }

    /// Records the number of a grant. The recorded number never decreases.
    pub(super) fn count(&self, number: u64, supervisor: &Supervisor) -> Result<(), Error> {
        let mut text = self.text();
        if number <= text.grants {
            return Ok(());
        }
        let next = Text {
            grants: number,
            ..text.clone()
        };
        let call = PoolCall::Mark {
            file: (&self.path).into(),
            text: next.to_text(),
        };
        run(supervisor, &call, &|| ())?;
        *text = next;
        Ok(())
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the marker in a helper process. Replaces only an older marker of the same pool and node: the path may lead to
/// another directory by now.
pub(crate) fn write_marker(path: &Path, text: &str) -> Result<(), Error> {
    let mut file = open(path, false).at(path)?;
    let found = Text::parse(&read_own(&mut file, path)?);
    let whose = |text: Text| (text.identity, text.node);
    if found.is_none() || found.map(whose) != Text::parse(text).map(whose) {
        return Err(Error::Changed("another pool is in its place by now".into())).at(path);
    }
    put(&file, text).at(path)
}

/// Replaces the text with one write, since all texts have the same length. A crash leaves one complete text or an empty
/// file, which counts as no marker.
fn put(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// Checks the marker as [`Marker::take`] does, without taking it.
pub(super) fn check(
    directory: &Path,
    node_id: &NodeId,
    force: bool,
    has_volumes: bool,
) -> Result<(), Error> {
    let path = directory.join(NAME);
    let found = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let stored = match found {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        found => {
            let stored = found.and_then(|mut file| read(&mut file));
            fit(stored, &path, has_volumes)?
        }
    };
    let may_write = access(directory, AccessFlags::W_OK | AccessFlags::X_OK);
    fit(may_write.map_err(io::Error::from), &path, has_volumes)?;
    if stored.is_empty() && has_volumes && !force {
        return Err(Error::Setting(nobody(has_volumes).into())).at(&path);
    }
    Text::settle(&stored, node_id, force).map(drop).at(&path)
}

/// Describes a directory without a marker, with or without volumes.
fn nobody(has_volumes: bool) -> &'static str {
    match has_volumes {
        true => {
            "volumes are here, and nothing says whose: put the file back, or take the directory with \
             --force, which loses them"
        }
        false => "no pool is here: is its disk mounted?",
    }
}

/// Adds what to do if the marker could not be opened.
fn fit<T>(opened: io::Result<T>, path: &Path, has_volumes: bool) -> Result<T, Error> {
    let remedy = match opened.as_ref().map_err(io::Error::kind) {
        Err(ErrorKind::NotFound) => nobody(has_volumes),
        Err(ErrorKind::PermissionDenied) => {
            "the daemon has to run as root or as the owner of the directory"
        }
        Err(ErrorKind::ReadOnlyFilesystem) => {
            "a pool in a directory is written to: mount it read-write, or name it in ReadWritePaths= of the systemd unit"
        }
        _ => "give a directory that files can be made in",
    };
    opened.at(path).advise(format_args!("; {remedy}"))
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

/// Reads a marker that only this user can have made.
fn read_own(file: &mut File, path: &Path) -> Result<String, Error> {
    match file_flaw(&file.metadata().at(path)?) {
        Some(flaw) => Err(Error::Changed(flaw)).at(path),
        None => read(file).at(path),
    }
}

fn read(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Text {
    /// Makes the new text from the present one.
    fn settle(text: &str, node: &NodeId, force: bool) -> Result<Self, Error> {
        match Self::parse(text) {
            Some(found) if found.node == *node => Ok(found),
            // Each node counts its own grants.
            Some(found) if force => Ok(Self {
                node: *node,
                grants: 0,
                ..found
            }),
            Some(found) => Err(Error::Setting(format!(
                "the pool of node {}: let that one give it up and remove this file, or take it with --force",
                found.node
            ))),
            None if text.is_empty() || force => Ok(Self {
                identity: new_identity()?,
                node: *node,
                grants: 0,
            }),
            None => {
                let why = OtherFormat::refuse(Self::format_of(text).unwrap_or(FORMAT));
                let why = why.map_or_else(
                    |other| other.to_string(),
                    |()| "no marker of a pool: remove it".to_owned(),
                );
                Err(Error::Setting(format!(
                    "{why}, or take the directory with --force"
                )))
            }
        }
    }

    /// The number of the format; `None`: the text is no marker.
    fn format_of(text: &str) -> Option<u64> {
        text.lines().next()?.strip_prefix(FIRST_WORD)?.parse().ok()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        OtherFormat::refuse(Self::format_of(lines.next()?)?).ok()?;
        let identity = lines.next()?.strip_prefix("identity ")?;
        let node = lines.next()?.strip_prefix("node ")?;
        let grants = lines.next()?.strip_prefix("grants ")?;
        lines.next().is_none().then_some(())?;
        Some(Self {
            identity: decode_vec(identity).ok()?.try_into().ok()?,
            node: node.parse().ok()?,
            grants: grants.parse().ok()?,
        })
    }

    fn to_text(&self) -> String {
        let Self { node, grants, .. } = self;
        let identity = encode_string(&self.identity);
        format!("{FIRST_WORD}{FORMAT}\nidentity {identity}\nnode {node}\ngrants {grants:020}\n")
    }
}
