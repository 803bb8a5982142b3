//! The records of attached leases, one file each, for a second `attach` and a later `detach`.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fabricbios_local::make_passable;
use fabricbios_wire::{LeaseId, Transport};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::{
    error::AttachError,
    nvme::{NvmeHost, Target},
    paths::fits,
};

/// Mode bits for writing by others, and that of a directory such as /tmp.
const WRITES: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The record of one lease. It holds no secret.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttachRecord {
    pub(crate) lease_id: String,
    /// `None`: the daemon is attaching the device, or ended while it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<PathBuf>,
    #[serde(rename = "keeper_pid")]
    pub(crate) daemon_pid: u32,
    /// Over NVMe-oF: the target to disconnect when the daemon is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nvmeof: Option<Target>,
}

impl AttachRecord {
    /// The transport of the device; `None`: the kernel has no connection any more. A device over UDP exists as long as its
    /// daemon runs.
    pub(crate) fn transport(&self, host: &NvmeHost) -> Result<Option<Transport>, AttachError> {
        let Some(target) = &self.nvmeof else {
            return Ok(Some(Transport::Udp));
        };
        host.transport(target)
            .map_err(|error| AttachError::local("see how the device is connected", error))
    }

    /// Refuses another transport than that of the device.
    pub(crate) fn check_transport(
        &self,
        host: &NvmeHost,
        wanted: Transport,
    ) -> Result<(), AttachError> {
        match self.transport(host)? {
            Some(transport) if !fits(wanted, transport) => Err(AttachError::AttachedOtherwise {
                lease_id: self.lease_id.clone(),
                transport,
                device: self.device.clone(),
                wanted,
            }),
            _ => Ok(()),
        }
    }
}

/// The files of one attached lease: its record, its daemon's control socket and log.
#[derive(Clone, Debug)]
pub struct LeaseFiles {
    dir: PathBuf,
    lease_id: LeaseId,
}

impl LeaseFiles {
    /// Names the files of this lease in a directory; makes none.
    pub fn new(dir: &Path, lease_id: LeaseId) -> Self {
        let dir = dir.to_owned();
        Self { dir, lease_id }
    }

    pub(crate) fn lease_id(&self) -> LeaseId {
        self.lease_id
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.with_extension("json")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.with_extension("sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.with_extension("log")
    }

    fn with_extension(&self, extension: &str) -> PathBuf {
        self.dir.join(format!("{}.{extension}", self.lease_id))
    }

    /// Checks that the path is a directory into which nobody but root and this user can put a record, or does not exist:
    /// a record says what root disconnects.
    pub(crate) fn check_dir(&self) -> Result<(), AttachError> {
        let place = match fs::canonicalize(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place.map_err(|error| self.unusable(error))?,
        };
        if !place.is_dir() {
            return Err(self.unusable("it is not a directory"));
        }
        for at in place.ancestors() {
            let found = fs::metadata(at).map_err(|error| self.unusable(error))?;
            let is_ours = [0, geteuid().as_raw()].contains(&found.uid());
            // In a directory such as /tmp nobody replaces what is another user's.
            let is_open = found.mode() & WRITES != 0 && (at == place || found.mode() & STICKY == 0);
            if !is_ours || is_open {
                return Err(self.unusable(format_args!(
                    "others can put records there, because {} belongs to user {} and has mode {:04o}",
                    at.display(),
                    found.uid(),
                    found.mode() & 0o7777
                )));
            }
        }
        Ok(())
    }

    fn unusable(&self, why: impl ToString) -> AttachError {
        AttachError::Directory {
            dir: self.dir.clone(),
            why: why.to_string(),
        }
    }

    /// Makes the directory, for root alone, and [checks](Self::check_dir) it. Missing parent directories are passable for
    /// everybody, whatever the umask: other users may have files there.
    pub(crate) fn make_dir(&self) -> Result<(), AttachError> {
        let is_missing = |at: &&Path| !at.as_os_str().is_empty() && !at.exists();
        let missing: Vec<_> = self.dir.ancestors().take_while(is_missing).collect();
        for at in missing.into_iter().rev() {
            let made = match at == self.dir {
                true => DirBuilder::new().mode(0o700).create(at),
                false => make_passable(at),
            };
            match made {
                // Another process attaches at the same time.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(|error| self.unusable(error))?,
            }
        }
        self.check_dir()
    }

    /// Opens the log for appending.
    pub(crate) fn open_log(&self) -> Result<File, AttachError> {
        open(&self.log(), OpenOptions::new().append(true))
    }

    /// The record, if there is one.
    pub(crate) fn read(&self) -> Result<Option<AttachRecord>, AttachError> {
        let path = self.record();
        let cannot = |step: &str, error: io::Error| {
            AttachError::local(format!("{step} {}", path.display()), error)
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) if text.is_empty() => return Ok(None),
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", error)),
        };
        let record = serde_json::from_str(&text).map(Some);
        record.map_err(|error| cannot("understand", error.into()))
    }

    /// Locks the record: only one process attaches or detaches this lease while the result lives.
    pub(crate) fn lock(&self) -> Result<RecordLock, AttachError> {
        let path = self.record();
        let file = open(&path, OpenOptions::new().write(true))?;
        match file.try_lock() {
            // The previous holder of the lock may have removed the file since this process opened it.
            Ok(()) if is_at(&file, &path) => Ok(RecordLock {
                file,
                files: self.clone(),
            }),
            Ok(()) | Err(TryLockError::WouldBlock) => Err(AttachError::Busy(self.lease_id)),
            Err(TryLockError::Error(error)) => Err(AttachError::local(
                format!("lock {}", path.display()),
                error,
            )),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|it| it.ino()).ok();
    inode(file.metadata()) == inode(fs::metadata(path))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, AttachError> {
    let opened = options.create(true).mode(0o600).open(path);
    opened.map_err(|error| AttachError::local(format!("open {}", path.display()), error))
}

/// The lock of one record.
#[derive(Debug)]
pub(crate) struct RecordLock {
    file: File,
    files: LeaseFiles,
}

impl RecordLock {
    pub(crate) fn write(&self, record: &AttachRecord) -> Result<(), AttachError> {
        let cannot = |error: io::Error| {
            AttachError::local(format!("write {}", self.files.record().display()), error)
        };
        let text = serde_json::to_string(record).map_err(|error| cannot(error.into()))?;
        // The file is never empty in between: the connection must be found whenever this process is killed.
        let written = self.file.write_all_at(text.as_bytes(), 0);
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        written
            .and_then(|()| self.file.set_len(length))
            .map_err(cannot)
    }

    /// Removes record and socket of a detached lease. The log stays.
    pub(crate) fn remove(self) {
        for path in [self.files.socket(), self.files.record()] {
            fs::remove_file(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record() -> AttachRecord {
        AttachRecord {
            lease_id: LeaseId(7).to_string(),
            device: Some(PathBuf::from("/dev/nvme0n1")),
            daemon_pid: 1,
            nvmeof: None,
        }
    }

    #[test]
    fn a_record_is_for_root_alone_and_gone_after_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let files = LeaseFiles::new(&dir.path().join("a/b"), LeaseId(7));
        assert!(files.read().unwrap().is_none());
        files.make_dir().unwrap();
        let lock = files.lock().unwrap();
        assert!(
            files.read().unwrap().is_none(),
            "an empty file records nothing"
        );
        let begun = AttachRecord {
            device: None,
            ..record()
        };
        for said in [begun, record()] {
            lock.write(&said).unwrap();
            assert_eq!(files.read().unwrap().unwrap().device, said.device);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let modes = [files.record(), dir.path().join("a/b"), dir.path().join("a")];
        assert_eq!(modes.map(|it| mode(&it)), [0o600, 0o700, 0o755]);
        lock.remove();
        assert!(!files.record().exists());
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (above, at) = (dir.path().join("a"), dir.path().join("a/b"));
        let files = LeaseFiles::new(&at, LeaseId(7));
        files.make_dir().unwrap();
        let refused = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            files.check_dir().err().map(|error| error.to_string())
        };
        for (path, mode, usual) in [
            (&at, 0o770, 0o700),
            (&at, 0o1777, 0o700),
            (&above, 0o777, 0o755),
        ] {
            let said = refused(path, mode).unwrap();
            assert!(
                said.contains(&format!("{} belongs", path.display())),
                "{said}"
            );
            assert!(said.contains(&format!("mode {mode:04o}")), "{said}");
            assert_eq!(refused(path, usual), None);
        }
        assert_eq!(refused(&above, 0o1777), None);
    }

    #[test]
    fn a_lease_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let files = LeaseFiles::new(dir.path(), LeaseId(7));
        let first = files.lock().unwrap();
        let refused = format!("{:?}", files.lock().unwrap_err());
        assert!(refused.contains("Busy"), "{refused}");
        drop(first);
        files.lock().unwrap();
    }

    #[test]
    fn a_damaged_record_says_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let files = LeaseFiles::new(dir.path(), LeaseId(7));
        fs::write(files.record(), "{").unwrap();
        let refused = format!("{:?}", files.read().unwrap_err());
        assert!(
            refused.contains(&files.record().display().to_string()),
            "{refused}"
        );
    }
}
