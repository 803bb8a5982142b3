//! Whether only this user and root can change a directory, and read its secrets.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::unistd::Uid;

use crate::{
    FileProblem, IdentityError,
    node::{damaged, io_error},
};

/// Refuses a secret that another user can read, or in whose directory another user can write.
pub(crate) fn check_file(path: &Path) -> Result<(), IdentityError> {
    let directory = path.parent().filter(|it| *it != Path::new(""));
    look(directory.unwrap_or(Path::new(".")), WRITES, "write")?;
    look(path, ANYTHING, "read")
}

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
    look(directory, WRITES, "write")?;
    let present = secrets.iter().map(|name| directory.join(name));
    let mut present = present.filter(|path| path.exists());
    present.try_for_each(|path| look(&path, ANYTHING, "read"))
}

fn look(path: &Path, bits: u32, what: &'static str) -> Result<(), IdentityError> {
    let found = fs::metadata(path).map_err(io_error("look at", path))?;
    let us = Uid::effective().as_raw();
    if found.uid() != us && found.uid() != 0 {
        let owner = found.uid();
        return Err(damaged(
            path,
            "run this as that user, or move the fabric to a directory of yours",
        )(FileProblem::Owner { owner, us }));
    }
    let credentials = env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let of_systemd = is_credential(path, found.uid(), credentials.as_deref());
    match found.mode() & bits & !if of_systemd { GROUP_READS } else { 0 } {
        0 => Ok(()),
        _ => Err(damaged(
            path,
            "`chmod go-rwx` mends that; if another user may have used it, make a new fabric",
        )(FileProblem::Exposed {
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
