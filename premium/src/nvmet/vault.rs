//! The directory in which host names and keys outlive process and boot.
//!
//! One file per host, which is either whole or absent: written aside, synced, renamed into place. Only its
//! owner can read it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::Nqn;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::credentials::Credential;

/// Ends the name of a file that is being written.
const ASIDE: &str = "new";

/// Longest file that is read; 60,000 leases of one host stay below it.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Vault {
    directory: PathBuf,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StepError {
    move |error| StepError::new("credentials", format_args!("{}: {error}", path.display()))
}

impl Vault {
    /// Makes the directory if need be.
    pub(super) fn open(directory: PathBuf) -> Result<Self, StepError> {
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&directory);
        made.map_err(failed(&directory))?;
        Ok(Self { directory })
    }

    /// What is there. A file that was being written when its writer died says nothing, and goes.
    pub(super) fn load(&self) -> Result<Vec<Credential>, StepError> {
        let mut found = Vec::new();
        let entries = fs::read_dir(&self.directory).map_err(failed(&self.directory))?;
        for entry in entries {
            let path = entry.map_err(failed(&self.directory))?.path();
            if path.extension().is_some_and(|ending| ending == ASIDE) {
                fs::remove_file(&path).map_err(failed(&path))?;
            } else {
                found.push(read(&path)?);
            }
        }
        Ok(found)
    }

    pub(super) fn write(&self, credential: &Credential) -> Result<(), StepError> {
        let path = self.path(&credential.host_nqn);
        let aside = path.with_extension(ASIDE);
        let text = encode(credential).map_err(failed(&path))?;
        let written = write_private(&aside, &text).and_then(|()| fs::rename(&aside, &path));
        written.and_then(|()| self.sync()).map_err(failed(&path))
    }

    pub(super) fn remove(&self, name: &Nqn) -> Result<(), StepError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&path)(error)),
            _ => self.sync().map_err(failed(&path)),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    /// The name of a host comes from a client, so it is no file name.
    fn path(&self, name: &Nqn) -> PathBuf {
        let digest = Sha256::digest(name.as_str().as_bytes());
        let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(digits)
    }
}

/// Grows like a vector, and leaves no copy behind when it does.
#[derive(Default)]
struct Wiped(Zeroizing<Vec<u8>>);

impl Write for Wiped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger =
                Zeroizing::new(Vec::with_capacity(needed.next_power_of_two().max(4096)));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn encode(credential: &Credential) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut text = Wiped::default();
    serde_json::to_writer(&mut text, credential)?;
    Ok(text.0)
}

fn read(path: &Path) -> Result<Credential, StepError> {
    let file = File::open(path).map_err(failed(path))?;
    let length = file.metadata().map_err(failed(path))?.len();
    let room = usize::try_from(length.min(FILE_BYTES_MAX)).unwrap_or(0);
    let mut text = Zeroizing::new(Vec::with_capacity(room + 1));
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(failed(path))?;
    // The reason is not told: it could quote a key.
    serde_json::from_slice(&text).map_err(|_damaged| {
        StepError::new(
            "credentials",
            format_args!(
                "{} is damaged: move it away; the leases in it get new names and keys",
                path.display()
            ),
        )
    })
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text)?;
    file.sync_all()
}
