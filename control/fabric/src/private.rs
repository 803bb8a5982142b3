//! Whether only this user and root can change a directory, and read its secrets.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::Uid;
use zeroize::Zeroizing;

use crate::{
    FileProblem, IdentityError,
    file::read_text,
    node::{damaged, io_error},
};

/// Refuses a secret that another user can read, or in whose directory another user can write.
pub(crate) fn check_file(path: &Path) -> Result<(), IdentityError> {
    check_secret(path, &OF_FABRIC)
}

/// Reads a file with a key, PEM, by the rule of all keys: no other user can read it or write in its directory.
///
/// # Errors
/// It cannot be read, or another user can.
pub fn read_key(path: &Path) -> Result<Zeroizing<String>, IdentityError> {
    check_secret(path, &OF_KEY)?;
    read_text(path).map_err(io_error("read", path))
}

fn check_secret(path: &Path, remedies: &Remedies) -> Result<(), IdentityError> {
    let directory = path.parent().filter(|it| *it != Path::new(""));
    let directory = directory.unwrap_or(Path::new("."));
    look(directory, WRITES, "write", remedies)?;
    look(path, ANYTHING, "read", remedies)
}

/// What to do if a file belongs to another user, and if another user can use it.
struct Remedies {
    owner: &'static str,
    exposed: &'static str,
}

const OF_FABRIC: Remedies = Remedies {
    owner: "run this as that user, or move the fabric to a directory of yours",
    exposed: "`chmod go-rwx` mends that; if another user may have used it, make a new fabric",
};
const OF_KEY: Remedies = Remedies {
    owner: "give it to the user that this process runs as",
    exposed: "`chmod go-rwx` mends that; if another user may have used it, make a new key",
};

/// Mode bits for writing by others, and for any access by others.
const WRITES: u32 = 0o022;
const ANYTHING: u32 = 0o077;

/// systemd gives a service a credential of root's by an ACL, which stat(2) shows as reading by the group.
const GROUP_READS: u32 = 0o040;

/// Whether systemd has put the file there for this service alone (systemd.exec(5), LoadCredential=).
fn is_credential(path: &Path, owner: u32, credentials: Option<&Path>) -> bool {
    owner == 0 && credentials.is_some_and(|it| it.is_absolute() && path.parent() == Some(it))
}

/// Refuses a directory in which another user can write, and secrets in it that another user can read.
pub(crate) fn check(directory: &Path, secrets: &[&str]) -> Result<(), IdentityError> {
    look(directory, WRITES, "write", &OF_FABRIC)?;
    let present = secrets.iter().map(|name| directory.join(name));
    let mut present = present.filter(|path| path.exists());
    present.try_for_each(|path| look(&path, ANYTHING, "read", &OF_FABRIC))
}

fn look(
    path: &Path,
    bits: u32,
    what: &'static str,
    remedies: &Remedies,
) -> Result<(), IdentityError> {
    let found = fs::metadata(path).map_err(io_error("look at", path))?;
    let us = Uid::effective().as_raw();
    if found.uid() != us && found.uid() != 0 {
        let owner = found.uid();
        return Err(damaged(path, remedies.owner)(FileProblem::Owner {
            owner,
            us,
        }));
    }
    let credentials = env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let of_systemd = is_credential(path, found.uid(), credentials.as_deref());
    match found.mode() & bits & !if of_systemd { GROUP_READS } else { 0 } {
        0 => Ok(()),
        _ => Err(damaged(path, remedies.exposed)(FileProblem::Exposed {
            what,
            mode: found.mode() & 0o7777,
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_of_root_in_the_directory_of_credentials_is_one() {
        let (directory, file) = (
            Path::new("/run/credentials/x"),
            Path::new("/run/credentials/x/id"),
        );
        assert!(is_credential(file, 0, Some(directory)));
        assert!(!is_credential(file, 1000, Some(directory)));
        assert!(!is_credential(file, 0, None));
        assert!(!is_credential(file, 0, Some(Path::new("/run/credentials"))));
        assert!(!is_credential(Path::new("id"), 0, Some(Path::new(""))));
    }
}
