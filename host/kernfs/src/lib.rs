//! A rooted tree of kernel attributes: sysfs, procfs, configfs, cgroupfs.
//!
//! Every path is relative to the root, so the same code runs on `/sys` and on a test's directory. Every error contains
//! the path, the written value (unless it is a secret) and the errno. This crate knows no attribute by name, never
//! retries, and refuses a path that leaves its root (`..`, absolute). It follows the kernel's symbolic links, since
//! sysfs consists of them. Any call can block in the kernel for any time.
//!
//! Read first: [`Tree`], in this file.
#![forbid(unsafe_code)]

mod death;
mod error;
mod list;
mod modules;
mod mounts;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

pub use death::step_passed;
use error::Cause;
pub use error::Error;
pub use list::parse_list;
pub use modules::load_module;
pub use mounts::{Mount, mounts, parse_mounts};
use zeroize::Zeroizing;

/// Largest number of bytes that [`Tree::read`] takes. An attribute is at most a page; procfs has longer files.
pub const READ_BYTES_MAX: usize = 1 << 20;

/// Largest number of bytes of a secret that are compared: a page, as for any attribute.
const SECRET_BYTES_MAX: usize = 4096;

/// A directory that all paths are relative to.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree below `root`, which need not exist yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory that all paths are relative to.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the whole text and trims white space.
    ///
    /// # Errors
    /// The read fails, or the text has more than [`READ_BYTES_MAX`] bytes or is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let (at, text) = self.read_at_most(path.as_ref(), READ_BYTES_MAX + 1)?;
        if text.len() > READ_BYTES_MAX {
            return Err(Error::new("read", at, Cause::TooLong(READ_BYTES_MAX)));
        }
        text_of(text).map_err(|cause| Error::new("read", at, cause))
    }

    /// Reads the whole lines among the first `max_bytes`, for long files whose start is enough.
    ///
    /// # Errors
    /// The read fails, or the text is not UTF-8.
    pub fn read_head(&self, path: impl AsRef<Path>, max_bytes: usize) -> Result<String, Error> {
        let (at, mut text) = self.read_at_most(path.as_ref(), max_bytes)?;
        if text.len() == max_bytes {
            text.truncate(text.iter().rposition(|&byte| byte == b'\n').unwrap_or(0));
        }
        text_of(text).map_err(|cause| Error::new("read", at, cause))
    }

    /// Reads and parses a value, such as a `u64`.
    ///
    /// # Errors
    /// As [`Tree::read`], or the text does not parse.
    pub fn read_as<T: FromStr>(&self, path: impl AsRef<Path>) -> Result<T, Error> {
        let text = self.read(path.as_ref())?;
        let wanted = std::any::type_name::<T>();
        text.parse()
            .map_err(|_unparsed: T::Err| self.malformed(path.as_ref(), &text, wanted))
    }

    /// Reads a kernel list such as `0-3,8`; the numbers are ascending.
    ///
    /// # Errors
    /// As [`Tree::read`], or the text is no list.
    pub fn read_list(&self, path: impl AsRef<Path>) -> Result<Vec<u32>, Error> {
        let text = self.read(path.as_ref())?;
        parse_list(&text).ok_or_else(|| self.malformed(path.as_ref(), &text, "a list of numbers"))
    }

    /// The names in a directory, sorted. Names of the kernel are ASCII.
    ///
    /// # Errors
    /// The read fails, or a name is not UTF-8.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        let name = |entry: io::Result<fs::DirEntry>| -> io::Result<String> {
            entry?
                .file_name()
                .into_string()
                .map_err(|_name| io::ErrorKind::InvalidData.into())
        };
        self.perform("list", path.as_ref(), |at| {
            let mut names = fs::read_dir(at)?
                .map(name)
                .collect::<io::Result<Vec<_>>>()?;
            names.sort_unstable();
            Ok(names)
        })
    }

    /// Whether the path exists, even as a dangling link.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        let at = self.resolve("look at", path.as_ref())?;
        match fs::symlink_metadata(&at) {
            Ok(_) => Ok(true),
            Err(e) if absent(&e) => Ok(false),
            Err(e) => Err(Error::new("look at", at, e)),
        }
    }

    /// The last name in the target of a symbolic link, such as the name of a driver.
    ///
    /// # Errors
    /// The link cannot be read, or its target has no last name.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Result<String, Error> {
        let at = self.resolve("read link", path.as_ref())?;
        let target = fs::read_link(&at).map_err(|e| Error::new("read link", at.clone(), e));
        let name = target?
            .file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned);
        name.ok_or_else(|| Error::new("read link", at, Cause::NotText))
    }

    /// Writes the value in one `write(2)`, as the kernel expects. Never creates a file.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn write(&self, path: impl AsRef<Path>, value: &str) -> Result<(), Error> {
        self.write_shown(path.as_ref(), value)
            .map_err(|e| e.with_value(format!("`{value}`")))
    }

    /// Writes a secret. Neither errors nor logs show it.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn write_secret(&self, path: impl AsRef<Path>, value: &str) -> Result<(), Error> {
        self.write_shown(path.as_ref(), value)
            .map_err(|e| e.with_value("a secret".to_owned()))
    }

    /// Whether the file contains this secret. No copy of the text remains in memory.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn holds_secret(&self, path: impl AsRef<Path>, value: &str) -> Result<bool, Error> {
        let mut held = Zeroizing::new([0; SECRET_BYTES_MAX]);
        let mut length = 0;
        self.perform("read", path.as_ref(), |at| {
            let mut file = File::open(at)?;
            loop {
                match file.read(&mut held[length..])? {
                    0 => return Ok(()),
                    more => length += more,
                }
            }
        })?;
        Ok(held[..length].trim_ascii() == value.as_bytes().trim_ascii())
    }

    /// Sets the mode of a file or directory, as chmod(2) does.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        self.perform("set mode", path.as_ref(), |at| {
            fs::set_permissions(at, Permissions::from_mode(mode))
        })
        .map_err(|e| e.with_value(format!("{mode:#o}")))
    }

    /// Makes a directory; in configfs and cgroupfs that makes the object.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn mkdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.perform("make directory", path.as_ref(), |at| fs::create_dir(at))
    }

    /// Removes a directory; in configfs and cgroupfs that removes the object.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.perform("remove directory", path.as_ref(), |at| fs::remove_dir(at))
    }

    /// Makes `link` point to `target`, both in this tree. The link holds the absolute path, because
    /// configfs resolves a relative one from the working directory of the process.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        let target = self.resolve("link", target.as_ref())?;
        self.perform("link", link.as_ref(), |at| {
            std::os::unix::fs::symlink(&target, at)
        })
        .map_err(|e| e.with_value(format!("`{}`", target.display())))
    }

    /// Removes a link.
    ///
    /// # Errors
    /// The call fails; see [`Error`].
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.perform("unlink", path.as_ref(), |at| fs::remove_file(at))
    }

    fn resolve(&self, operation: &'static str, path: &Path) -> Result<PathBuf, Error> {
        let inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            return Err(Error::new(operation, path.to_owned(), Cause::Outside));
        }
        Ok(self.root.join(path))
    }

    fn perform<T>(
        &self,
        operation: &'static str,
        path: &Path,
        act: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<T, Error> {
        let at = self.resolve(operation, path)?;
        act(&at).map_err(|e| Error::new(operation, at, e))
    }

    fn read_at_most(&self, path: &Path, limit: usize) -> Result<(PathBuf, Vec<u8>), Error> {
        let mut text = Vec::new();
        self.perform("read", path, |at| {
            File::open(at)?.take(limit as u64).read_to_end(&mut text)
        })?;
        Ok((self.root.join(path), text))
    }

    fn write_shown(&self, path: &Path, value: &str) -> Result<(), Error> {
        self.perform("write", path, |at| {
            let mut file = OpenOptions::new().write(true).truncate(true).open(at)?;
            let taken = file.write(value.as_bytes())?;
            if taken == value.len() {
                Ok(())
            } else {
                Err(io::ErrorKind::WriteZero.into())
            }
        })
    }

    fn malformed(&self, path: &Path, text: &str, wanted: &'static str) -> Error {
        let got = text.chars().take(64).collect();
        Error::new(
            "read",
            self.root.join(path),
            Cause::Malformed { wanted, got },
        )
    }
}

fn text_of(bytes: Vec<u8>) -> Result<String, Cause> {
    let text = String::from_utf8(bytes).map_err(|_not_utf8| Cause::NotText)?;
    Ok(text.trim().to_owned())
}

fn absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests;
