//! The file that says whose pool a directory is. Whoever has it locked has the pool.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use fabricbios_wire::NodeId;

use super::volume::file_flaw;
use crate::lock::lock;

const NAME: &str = ".fabricbios-pool";
const FIRST_LINE: &str = "fabricbios-pool 1";
/// Longer than any marker.
const BYTES_MAX: u64 = 4096;

#[derive(Debug)]
pub(super) struct Marker {
    text: Text,
    /// The lock goes with it.
    _file: File,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    identity: u128,
    node: String,
}

impl Marker {
    /// Locks the marker of the directory; writes one if there is none, or if another node's is taken by
    /// force.
    pub(super) fn take(directory: &Path, node: &NodeId, force: bool) -> Result<Self, String> {
        let path = directory.join(NAME);
        let shown = path.display();
        let mut file = open(&path).map_err(|error| format!("{shown}: {error}"))?;
        lock(&file).map_err(|why| format!("{shown}: {why}"))?;
        let metadata = file
            .metadata()
            .map_err(|error| format!("{shown}: {error}"))?;
        if let Some(flaw) = file_flaw(&metadata) {
            return Err(format!("{shown}: {flaw}"));
        }
        let found = read(&mut file).map_err(|error| format!("{shown}: {error}"))?;
        let text = Text::settle(&found, node, force).map_err(|why| format!("{shown}: {why}"))?;
        if Text::parse(&found).as_ref() != Some(&text) {
            let written = text.write(&file, directory);
            written.map_err(|error| format!("{shown}: {error}"))?;
        }
        Ok(Self { text, _file: file })
    }

    pub(super) fn identity(&self) -> [u8; 16] {
        self.text.identity.to_be_bytes()
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn read(file: &mut File) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Text {
    /// What shall stand there, given what stands there.
    fn settle(text: &str, node: &NodeId, force: bool) -> Result<Self, String> {
        let ours = node.to_string();
        let found = Self::parse(text);
        match found {
            Some(found) if found.node == ours || force => Ok(Self {
                node: ours,
                ..found
            }),
            Some(found) => Err(format!(
                "the pool of node {}: let that one give it up and remove this file, or take it with --force",
                found.node
            )),
            None if text.is_empty() || force => Self::new(ours),
            None => Err(
                "no marker of a pool that this version knows: remove it, or take the \
                 directory with --force"
                    .to_owned(),
            ),
        }
    }

    fn new(node: String) -> Result<Self, String> {
        let mut identity = [0; 16];
        getrandom::fill(&mut identity).map_err(|error| format!("no random number: {error}"))?;
        Ok(Self {
            identity: u128::from_be_bytes(identity),
            node,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        (lines.next()? == FIRST_LINE).then_some(())?;
        let identity = lines.next()?.strip_prefix("identity ")?;
        let node = lines.next()?.strip_prefix("node ")?;
        let is_hex = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        (is_hex(identity, 32) && is_hex(node, 64) && lines.next().is_none()).then_some(())?;
        Some(Self {
            identity: u128::from_str_radix(identity, 16).ok()?,
            node: node.to_owned(),
        })
    }

    /// In one write: a crash leaves an empty file, which counts as none, or the whole text.
    fn write(&self, file: &File, directory: &Path) -> std::io::Result<()> {
        let Self { identity, node } = self;
        let text = format!("{FIRST_LINE}\nidentity {identity:032x}\nnode {node}\n");
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    }
}
