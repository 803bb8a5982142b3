//! Directories into which only the node can put files.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::Path,
};

use nix::unistd::{Uid, geteuid};

/// Checks that only root and the user of this process can put a file into the directory or replace the directory.
/// `danger`: what other users could do otherwise, and which directory to choose instead, for people.
///
/// # Errors
/// The path is not absolute or leads to no directory, or other users can do that.
pub fn check_directory(directory: &Path, danger: &str) -> io::Result<()> {
    check_absolute(directory)?;
    let us = geteuid();
    // A user who may rename a directory above can replace it. A symbolic link has its own directories above.
    let linked = fs::canonicalize(directory)?;
    for path in [directory, &linked] {
        for at in path.ancestors() {
            check(at, at == path, us, danger)?;
        }
    }
    Ok(())
}

/// Makes a directory that only this user writes to and that every user can pass, whatever the umask. An existing
/// directory stays as it is. For directories that several programs share, such as `/run/fabricbios`.
///
/// # Errors
/// The directory cannot be made.
pub fn make_passable(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether this is the directory that fabricctl and the daemon share. A node opens it to other users if they cannot
/// pass it; other directories are the operator's.
#[cfg(feature = "server")]
#[must_use]
pub fn is_shared(directory: &Path) -> bool {
    Some(directory) == Path::new(crate::DEFAULT_SOCKET).parent()
}

/// Refuses a directory that other users cannot pass: they could not reach the files in it.
///
/// # Errors
/// Other users cannot pass the directory.
#[cfg(feature = "server")]
pub fn check_passable(directory: &Path) -> io::Result<()> {
    let mode = fs::metadata(directory)?.mode() & 0o7777;
    match mode & 0o011 {
        0 => invalid(format!(
            "the directory {0} has mode {mode:04o}, so that no tenant reaches the socket: chmod 755 {0}, or choose another \
             place",
            directory.display()
        )),
        _ => Ok(()),
    }
}

/// Refuses a path that depends on the node's working directory.
///
/// # Errors
/// The path is not absolute.
pub fn check_absolute(path: &Path) -> io::Result<()> {
    match path.is_absolute() {
        true => Ok(()),
        false => invalid("the path is not absolute".into()),
    }
}

/// `is_last`: `at` is the directory itself, not one above it.
fn check(at: &Path, is_last: bool, us: Uid, danger: &str) -> io::Result<()> {
    let (shown, found) = (at.display(), fs::metadata(at)?);
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    if !found.is_dir() {
        return invalid(format!("{shown} is no directory"));
    }
    if owner != 0 && owner != us.as_raw() {
        return invalid(format!(
            "the directory {shown} is of uid {owner}, who could {danger}"
        ));
    }
    // In a sticky directory such as /tmp, users cannot rename files of others.
    let keeps = !is_last && mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !keeps {
        return invalid(format!(
            "the directory {shown} has mode {mode:04o}, so other users could {danger}"
        ));
    }
    Ok(())
}

fn invalid(why: String) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, chown},
    };

    use super::*;

    #[test]
    fn a_directory_that_others_own_or_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let owner = Uid::from_raw(fs::metadata(at).unwrap().uid());
        let set = |mode| fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
        let check =
            |is_last, us| check(at, is_last, us, "do harm").map_err(|error| error.to_string());
        for mode in [0o755, 0o700] {
            set(mode);
            check(true, owner).unwrap();
        }
        for mode in [0o775, 0o757, 0o1777] {
            set(mode);
            let error = check(true, owner).unwrap_err();
            let expected = format!("has mode {mode:04o}, so other users could do harm");
            assert!(error.contains(&expected), "{error}");
        }
        check(false, owner).unwrap();
        set(0o755);
        // Only root can give a directory to another user.
        if owner.is_root() {
            chown(at, Some(12345), None).unwrap();
        }
        let error = check(false, Uid::from_raw(54321)).unwrap_err();
        assert!(error.contains("who could do harm"), "{error}");
    }

    #[test]
    fn what_others_may_rename_a_relative_path_and_a_file_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let (open, file) = (place.path().join("open"), place.path().join("file"));
        let inner = open.join("inner");
        fs::create_dir_all(&inner).unwrap();
        for (at, mode) in [(&open, 0o777), (&inner, 0o755)] {
            fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
        }
        fs::write(&file, "").unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        let writable = format!("{} has mode 0777", open.display());
        for (at, why) in [
            (&*inner, &*writable),
            (&*link, &*writable),
            (&*file, "is no directory"),
            (Path::new("relative"), "the path is not absolute"),
            (Path::new(""), "the path is not absolute"),
        ] {
            let error = check_directory(at, "do harm").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
