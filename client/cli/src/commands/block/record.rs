//! The records of attached leases, one file each, for a second `attach` and a later `detach`.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fabricbios_local::make_passable;
use fabricbios_wire::{LeaseId, RefusalClass, Transport};
use serde::{Deserialize, Serialize};

use super::{
    attach_paths::fits,
    nvme_host::{NvmeHost, Target},
};
use crate::failure::{Exit, Failure};

/// The record of one lease. It holds no secret.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) lease_id: String,
    /// `None`: the daemon is attaching the device, or ended while it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<PathBuf>,
    #[serde(rename = "keeper_pid")]
    pub(super) daemon_pid: u32,
    /// Over NVMe-oF: the target to disconnect when the daemon is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nvmeof: Option<Target>,
}

impl Record {
    /// The transport of the device; `None`: the kernel has no connection any more. A device over UDP exists as long as its
    /// daemon runs.
    pub(super) fn transport(&self, host: &NvmeHost) -> Result<Option<Transport>, Failure> {
        let Some(target) = &self.nvmeof else {
            return Ok(Some(Transport::Udp));
        };
        host.transport(target)
            .map_err(|error| Failure::local("see how the device is connected", &error))
    }

    /// Refuses another transport than that of the device.
    pub(super) fn check_transport(
        &self,
        host: &NvmeHost,
        wanted: Transport,
    ) -> Result<(), Failure> {
        match self.transport(host)? {
            Some(transport) if !fits(wanted, transport) => Err(self.otherwise(transport, wanted)),
            _ => Ok(()),
        }
    }

    fn otherwise(&self, transport: Transport, wanted: Transport) -> Failure {
        let lease_id = &self.lease_id;
        let device = self.device.as_ref();
        let device = device.map_or(String::new(), |path| format!(" as {}", path.display()));
        let message = format!(
            "lease {lease_id} is attached over {transport}{device} and not over {wanted}; to change that, \
             `fabricctl block detach {lease_id}` first"
        );
        Failure::new(
            Exit::Other,
            RefusalClass::Transient,
            "AttachedOtherwise",
            message,
        )
    }
}

/// The files of one lease.
#[derive(Clone, Debug)]
pub(super) struct Files {
    dir: PathBuf,
    lease_id: LeaseId,
}

impl Files {
    pub(super) fn new(dir: &Path, lease_id: LeaseId) -> Self {
        let dir = dir.to_owned();
        Self { dir, lease_id }
    }

    pub(super) fn record(&self) -> PathBuf {
        self.with_extension("json")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.with_extension("sock")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.with_extension("log")
    }

    fn with_extension(&self, extension: &str) -> PathBuf {
        self.dir.join(format!("{}.{extension}", self.lease_id))
    }

    /// Checks that the path is a directory or does not exist.
    pub(super) fn check_dir(&self) -> Result<(), Failure> {
        match fs::metadata(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.unusable(&error)),
            Ok(metadata) if metadata.is_dir() => Ok(()),
            Ok(_) => Err(self.unusable(&"it is not a directory")),
        }
    }

    fn unusable(&self, why: &dyn fmt::Display) -> Failure {
        Failure::usage(format!(
            "--attach-dir {}: {why}; name a directory, or leave it out",
            self.dir.display()
        ))
    }

    /// Makes the directory, for root alone: whoever can write here decides which device is detached. Missing parent
    /// directories are passable for everybody, whatever the umask: other users look for a node's local socket in
    /// /run/fabricbios.
    pub(super) fn make_dir(&self) -> Result<(), Failure> {
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
                made => made.map_err(|error| self.unusable(&error))?,
            }
        }
        Ok(())
    }

    /// Opens the log for appending.
    pub(super) fn open_log(&self) -> Result<File, Failure> {
        open(&self.log(), OpenOptions::new().append(true))
    }

    /// The record, if there is one.
    pub(super) fn read(&self) -> Result<Option<Record>, Failure> {
        let path = self.record();
        let text = match fs::read_to_string(&path) {
            Ok(text) if text.is_empty() => return Ok(None),
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::local(&format!("read {}", path.display()), &error)),
        };
        let record = serde_json::from_str(&text);
        record
            .map(Some)
            .map_err(|error| Failure::local(&format!("understand {}", path.display()), &error))
    }

    /// Locks the record: only one process attaches or detaches this lease while the result lives.
    pub(super) fn lock(&self) -> Result<Lock, Failure> {
        let path = self.record();
        let file = open(&path, OpenOptions::new().write(true))?;
        match file.try_lock() {
            // The previous holder of the lock may have removed the file since this process opened it.
            Ok(()) if is_at(&file, &path) => Ok(Lock {
                file,
                files: self.clone(),
            }),
            Ok(()) | Err(TryLockError::WouldBlock) => Err(self.busy()),
            Err(TryLockError::Error(error)) => {
                Err(Failure::local(&format!("lock {}", path.display()), &error))
            }
        }
    }

    fn busy(&self) -> Failure {
        let message = format!(
            "lease {} is being attached or detached by another process; try again",
            self.lease_id
        );
        Failure::new(Exit::Other, RefusalClass::Transient, "Busy", message)
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|it| it.ino()).ok();
    inode(file.metadata()) == inode(fs::metadata(path))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File, Failure> {
    let opened = options.create(true).mode(0o600).open(path);
    opened.map_err(|error| Failure::local(&format!("open {}", path.display()), &error))
}

/// The lock of one record.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    files: Files,
}

impl Lock {
    pub(super) fn write(&self, record: &Record) -> Result<(), Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::local(&format!("write {}", self.files.record().display()), error)
        };
        let text = serde_json::to_string(record).map_err(|error| cannot(&error))?;
        // The file is never empty in between: the connection must be found whenever this process is killed.
        let written = self.file.write_all_at(text.as_bytes(), 0);
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        written
            .and_then(|()| self.file.set_len(length))
            .map_err(|error| cannot(&error))
    }

    /// Removes record and socket of a detached lease. The log stays.
    pub(super) fn remove(self) {
        for path in [self.files.socket(), self.files.record()] {
            fs::remove_file(path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn record() -> Record {
        Record {
            lease_id: LeaseId(7).to_string(),
            device: Some(PathBuf::from("/dev/nvme0n1")),
            daemon_pid: 1,
            nvmeof: None,
        }
    }

    #[test]
    fn a_record_is_for_root_alone_and_gone_after_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("a/b"), LeaseId(7));
        assert!(files.read().unwrap().is_none());
        files.make_dir().unwrap();
        let lock = files.lock().unwrap();
        assert!(
            files.read().unwrap().is_none(),
            "an empty file records nothing"
        );
        let begun = Record {
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
    fn a_lease_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path(), LeaseId(7));
        let first = files.lock().unwrap();
        let refused = format!("{:?}", files.lock().unwrap_err());
        assert!(refused.contains("Busy"), "{refused}");
        drop(first);
        files.lock().unwrap();
    }

    #[test]
    fn a_damaged_record_says_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path(), LeaseId(7));
        fs::write(files.record(), "{").unwrap();
        let refused = format!("{:?}", files.read().unwrap_err());
        assert!(
            refused.contains(&files.record().display().to_string()),
            "{refused}"
        );
    }
}
