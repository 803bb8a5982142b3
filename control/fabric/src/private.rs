//! Whether only this user and root can change a directory, and read its secrets.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

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
    match found.mode() & bits {
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
