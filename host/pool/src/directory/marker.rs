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
use crate::PoolConfig;
use crate::lock::lock;
use crate::wipe::{PoolCall, run};

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
    ) -> Result<Self, String> {
        let (node, force) = (&config.node_id, config.force);
        let may_begin = config.may_begin && (force || !has_volumes);
        let path = directory.join(NAME);
        let shown = path.display().to_string();
        let mut file = open(&path, may_begin)
            .map_err(|error| format!("{shown}: {error}; {}", remedy(&error, has_volumes)))?;
        lock(&file).map_err(|why| format!("{shown}: {why}"))?;
        let metadata = file
            .metadata()
            .map_err(|error| format!("{shown}: {error}"))?;
        if let Some(flaw) = file_flaw(&metadata) {
            return Err(format!("{shown}: {flaw}"));
        }
        let stored = read(&mut file).map_err(|error| format!("{shown}: {error}"))?;
        if stored.is_empty() && !may_begin {
            return Err(format!("{shown}: empty; {}", nobody(has_volumes)));
        }
        let text = Text::settle(&stored, node, force).map_err(|why| format!("{shown}: {why}"))?;
        let found = Text::parse(&stored);
        let is_ours = found.as_ref().is_some_and(|found| found.node == text.node);
        if !stored.is_empty() && !is_ours {
            let of = found.as_ref().map_or_else(
                || "nobody knows whom".to_owned(),
                |found| found.node.to_string(),
            );
            tracing::warn!(pool = %directory.display(), %of, "--force: taken although it was another's; its volumes are lost");
        }
        if found.as_ref() != Some(&text) {
            let made = put(&file, &text.to_text()).and_then(|()| File::open(directory)?.sync_all());
            made.map_err(|error| format!("{shown}: {error}"))?;
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
    pub(super) fn count(&self, number: u64, supervisor: &Supervisor) -> Result<(), String> {
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
pub(crate) fn write_marker(path: &Path, text: &str) -> Result<(), String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("{shown}: {error}");
    let mut file = open(path, false).map_err(failed)?;
    if let Some(flaw) = file_flaw(&file.metadata().map_err(failed)?) {
        return Err(format!("{shown}: {flaw}"));
    }
    let found = Text::parse(&read(&mut file).map_err(failed)?);
    let whose = |text: Text| (text.identity, text.node);
    if found.is_none() || found.map(whose) != Text::parse(text).map(whose) {
        return Err(format!("{shown}: another pool is in its place by now"));
    }
    put(&file, text).map_err(failed)
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
) -> Result<(), String> {
    let path = directory.join(NAME);
    let shown = path.display();
    let found = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let stored = match found {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        found => found
            .and_then(|mut file| read(&mut file))
            .map_err(|error| format!("{shown}: {error}; {}", remedy(&error, has_volumes)))?,
    };
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        let error = io::Error::from(errno);
        format!("{shown}: {error}; {}", remedy(&error, has_volumes))
    })?;
    if stored.is_empty() && has_volumes && !force {
        return Err(format!("{shown}: {}", nobody(has_volumes)));
    }
    let settled = Text::settle(&stored, node_id, force);
    settled.map(drop).map_err(|why| format!("{shown}: {why}"))
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

fn remedy(error: &io::Error, has_volumes: bool) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => nobody(has_volumes),
        ErrorKind::PermissionDenied => {
            "the daemon has to run as root or as the owner of the directory"
        }
        ErrorKind::ReadOnlyFilesystem => "a pool in a directory is written to: mount it read-write",
        _ => "give a directory that files can be made in",
    }
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

fn read(file: &mut File) -> io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Text {
    /// Makes the new text from the present one.
    fn settle(text: &str, node: &NodeId, force: bool) -> Result<Self, String> {
        match Self::parse(text) {
            Some(found) if found.node == *node => Ok(found),
            // Each node counts its own grants.
            Some(found) if force => Ok(Self {
                node: *node,
                grants: 0,
                ..found
            }),
            Some(found) => Err(format!(
                "the pool of node {}: let that one give it up and remove this file, or take it with --force",
                found.node
            )),
            None if text.is_empty() || force => {
                let mut identity = [0; 16];
                getrandom::fill(&mut identity)
                    .map_err(|error| format!("no random number: {error}"))?;
                Ok(Self {
                    identity,
                    node: *node,
                    grants: 0,
                })
            }
            None => {
                let why = OtherFormat::refuse(Self::format_of(text).unwrap_or(FORMAT));
                let why = why.map_or_else(
                    |other| other.to_string(),
                    |()| "no marker of a pool: remove it".to_owned(),
                );
                Err(format!("{why}, or take the directory with --force"))
            }
        }
    }

    /// The number of the format; `None`: the text is no marker.
    fn format_of(text: &str) -> Option<u64> {
        text.lines().next()?.strip_prefix(FIRST_WORD)?.parse().ok()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        (Self::format_of(lines.next()?)? == FORMAT).then_some(())?;
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
