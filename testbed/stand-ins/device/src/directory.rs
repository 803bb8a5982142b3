//! The state directory: knobs, and each device's memory and table.

use std::{
    env, fs,
    fs::File,
    io,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{Device, Knob, Vendor};

/// The environment variable that names the state directory.
pub const VARIABLE: &str = "FABRICBIOS_STAND_IN_DIR";

/// The state directory of the stand-ins. All processes that use the same one share its devices.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory that the environment names, or the user's own one in `/tmp`.
    ///
    /// # Errors
    /// The directory does not exist and cannot be made.
    pub fn from_environment() -> io::Result<Self> {
        let user = nix::unistd::geteuid();
        let named = env::var_os(VARIABLE).filter(|it| !it.is_empty());
        let path = named.map_or_else(
            || PathBuf::from(format!("/tmp/fabricbios-stand-ins-{user}")),
            PathBuf::from,
        );
        Self::at(path)
    }

    /// This directory, made if it does not exist. Everybody may use it, since a worker process can run as another user.
    ///
    /// # Errors
    /// The directory does not exist and cannot be made.
    pub fn at(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if !path.is_dir() {
            fs::create_dir_all(&path).map_err(|error| named(&path, &error))?;
            // Fails if another process, which has just made the directory, runs as another user.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).ok();
        }
        Ok(Self { path })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets a knob.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn set(&self, knob: Knob, text: &str) -> io::Result<()> {
        // The file is not truncated first: no reader sees it empty in between.
        let file = self.open(knob.name())?;
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    }

    /// Switches a knob off.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn clear(&self, knob: Knob) -> io::Result<()> {
        self.set(knob, "")
    }

    /// Waits until the memory of processes that have ended is free.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn settle(&self, vendor: Vendor) -> io::Result<()> {
        Device::open_in(self.clone(), vendor)?.settle()
    }

    /// The bytes of a device's memory, of all processes.
    ///
    /// # Errors
    /// No process has used the device yet, or its file cannot be read.
    pub fn memory_of(&self, vendor: Vendor) -> io::Result<Vec<u8>> {
        let path = self.path.join(vendor.memory_file());
        fs::read(&path).map_err(|error| named(&path, &error))
    }

    /// Opens a file for reading and writing, for everybody; makes it if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened or made.
    pub(crate) fn open(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        let mut options = File::options();
        options.read(true).write(true);
        // The second turn: another process has made the file meanwhile.
        for _ in 0..2 {
            match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened.map_err(|error| named(&path, &error)),
            }
            match options.clone().create_new(true).open(&path) {
                Ok(file) => {
                    file.set_permissions(fs::Permissions::from_mode(0o666))?;
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(named(&path, &error)),
            }
        }
        options.open(&path).map_err(|error| named(&path, &error))
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
