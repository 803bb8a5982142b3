//! Reads files that an operator has named, whatever is there in their place.

use std::{
    fs::OpenOptions,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::fcntl::OFlag;
use zeroize::Zeroizing;

/// Longest file, bytes: certificates and keys have some thousands.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a text file. It never waits for who writes to a FIFO in its place.
///
/// # Errors
/// It cannot be opened or read, is no regular file, has more than 1 MiB, or is no text.
pub fn read_text(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut open = OpenOptions::new();
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    let file = open
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let found = file.metadata()?;
    let other = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    // Reading says of a directory that it is one.
    if !found.is_file() && !found.is_dir() {
        return other("it is no regular file");
    }
    let mut text = Zeroizing::new(String::new());
    let length = file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match length as u64 > BYTES_MAX {
        true => other("it has more than 1 MiB"),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_fifo_and_an_endless_device_are_refused_at_once_and_a_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        mkfifo(&at("fifo"), Mode::S_IRUSR).unwrap();
        for path in [at("fifo"), "/dev/zero".into()] {
            let why = read_text(&path).unwrap_err().to_string();
            assert_eq!(why, "it is no regular file", "{path:?}");
        }
        fs::write(at("file"), "text").unwrap();
        assert_eq!(*read_text(&at("file")).unwrap(), "text");
        fs::write(at("file"), vec![b' '; 1 + (1 << 20)]).unwrap();
        assert!(read_text(&at("file")).is_err());
        assert!(read_text(directory.path()).is_err());
    }
}
