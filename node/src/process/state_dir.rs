//! The state directory, with identities and journal: one daemon uses it, and only the daemon's user can write to it.

use std::{
    ffi::CString,
    fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    unistd::{AccessFlags, Gid, Uid, User, access, initgroups, setgid, setgroups, setuid},
};

use crate::journal;

/// Mode bits for writing by others, and for any access by others.
const WRITES: u32 = 0o022;
const ANYTHING: u32 = 0o077;
/// Mode bit of a directory such as /tmp, in which all users have files.
const STICKY: u32 = 0o1000;

/// Creates the directory if needed and locks it for this daemon. `Err`: another daemon has locked it, another user owns
/// it or can write to it, or another user can read a secret in it.
pub(crate) fn lock(path: &Path) -> anyhow::Result<File> {
    if !path.is_dir() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.with_context(|| {
            format!(
                "create the state directory {}; choose another with --state-dir",
                path.display()
            )
        })?;
    }
    check(path, Uid::effective().as_raw())?;
    let lock_path = path.join("daemon.lock");
    let file = open_lock(&lock_path)
        .with_context(|| format!("open {}; is the directory yours?", lock_path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(anyhow::anyhow!(
            "another daemon runs on the state directory {}: stop it, or choose another directory with --state-dir",
            path.display()
        )),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("lock {}", lock_path.display()))
        }
    }
}

/// Checks the directory as [`lock`] does, and changes nothing. Returns whether a daemon runs on it.
pub(crate) fn look(path: &Path) -> anyhow::Result<bool> {
    if path.is_dir() {
        check(path, Uid::effective().as_raw())?;
        return Ok(is_locked(&path.join("daemon.lock")));
    }
    if path.exists() {
        bail!(
            "the state directory {} is no directory; choose another with --state-dir",
            path.display()
        );
    }
    access(existing(path), AccessFlags::W_OK | AccessFlags::X_OK).with_context(|| {
        format!(
            "the state directory {} cannot be made; choose another with --state-dir",
            path.display()
        )
    })?;
    Ok(false)
}

/// Root checks as the user who owns the directory, whose daemon it is: for the rest of the process. Returns this user;
/// `None`: nothing has changed.
pub(crate) fn become_owner(path: &Path) -> anyhow::Result<Option<Uid>> {
    let Ok(found) = fs::metadata(path) else {
        return Ok(None);
    };
    let (uid, gid) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
    if !Uid::effective().is_root() || uid.is_root() {
        return Ok(None);
    }
    let change = || {
        match User::from_uid(uid)? {
            Some(User { name, gid, .. }) => {
                initgroups(&CString::new(name).map_err(|_nul| Errno::EINVAL)?, gid)?;
                setgid(gid)?;
            }
            None => {
                setgroups(&[])?;
                setgid(gid)?;
            }
        }
        setuid(uid)
    };
    change().with_context(|| format!("run as user {uid}, who owns {}", path.display()))?;
    Ok(Some(uid))
}

/// The directory, or that in which a start makes it.
pub(crate) fn existing(path: &Path) -> &Path {
    let mut all = path.ancestors();
    all.find(|it| it.exists()).unwrap_or(Path::new("."))
}

/// True if a daemon has locked the file.
fn is_locked(file: &Path) -> bool {
    let taken = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    File::open(file).is_ok_and(taken)
}

/// Opens a lock file, and creates it only if needed: on a frozen file system creating a file waits, but opening does
/// not.
pub(crate) fn open_lock(at: &Path) -> io::Result<File> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).mode(0o600);
    match open.open(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open.create(true).open(at),
        opened => opened,
    }
}

/// Refuses a directory in which another user can write: that user could act as the node, its CA and its operator. `us`:
/// the user of the daemon.
fn check(directory: &Path, us: u32) -> anyhow::Result<()> {
    let found = fs::metadata(directory);
    let found = found.with_context(|| format!("look at {}", directory.display()))?;
    if found.uid() != us {
        bail!(
            "the state directory {0} belongs to user {1}, and this daemon runs as user {us}: run it as that user, \
             or choose another with --state-dir, or, if you have put the directory there for user {us}, \
             `chown {us} {0}`",
            directory.display(),
            found.uid()
        );
    }
    refuse(directory, &found, WRITES, "write")?;
    check_entries(directory, us, |name| {
        let is_key = name == "ca-key.pem" || name.ends_with(".identity");
        is_key || [journal::FILE, journal::COMMITS].contains(&name)
    })
}

fn check_entries(
    directory: &Path,
    us: u32,
    is_secret: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let looking = || format!("look at the files of {}", directory.display());
    for entry in fs::read_dir(directory).with_context(looking)? {
        let path = entry.with_context(looking)?.path();
        // A dangling link has no owner.
        let Ok(found) = fs::metadata(&path) else {
            continue;
        };
        // Root needs no such file to gain access.
        if found.uid() != us && found.uid() != 0 {
            let (owner, at) = (found.uid(), path.display());
            // Root puts a copy back into a directory that it has made.
            let (user, gets) = match us {
                0 => (owner, directory.display()),
                _ => (us, path.display()),
            };
            bail!(
                "{at} belongs to user {owner}, and this daemon runs as user {us}: if you have put it there for a daemon of \
                 user {user}, `chown {user} {gets}`; else whoever put it there could be the node: look at what it is, \
                 and move it away"
            );
        }
        refuse(&path, &found, WRITES, "write")?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_secret(&name) {
            refuse(&path, &found, ANYTHING, "read")?;
        }
    }
    Ok(())
}

fn refuse(path: &Path, found: &Metadata, bits: u32, what: &str) -> anyhow::Result<()> {
    if found.mode() & bits == 0 {
        return Ok(());
    }
    let (at, mode) = (path.display(), found.mode() & 0o7777);
    if mode & STICKY != 0 {
        bail!(
            "others can {what} {at} (mode {mode:04o}), which is for all users: name a directory of the node's own \
             with --state-dir, such as /var/lib/fabricbios"
        );
    }
    let new_keys = match path.file_name().is_some_and(|it| it == "ca-key.pem") && what == "read" {
        true => "give the CA a new key with `fabricbiosd renew-ca --new-key`",
        false => "start a new fabric on a new --state-dir",
    };
    bail!(
        "others can {what} {at} (mode {mode:04o}): `chmod go-rwx {at}` mends that. Only if another user may have done so, who \
         could be the node or its operator by now, {new_keys}"
    )
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refused(directory: &Path) -> String {
        let refused = lock(directory).map(drop).unwrap_err();
        format!("{refused:#}")
    }

    #[test]
    fn a_directory_that_others_can_write_or_own_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o720, 0o702, 0o1777] {
            set(directory.path(), mode);
            let refused = refused(directory.path());
            assert!(refused.contains("others can write"), "{refused}");
            assert!(refused.contains(&format!("(mode {mode:04o})")), "{refused}");
            // The message must not suggest chmod for /tmp: that would break other programs.
            assert_eq!(refused.contains("chmod"), mode != 0o1777, "{refused}");
        }
        set(directory.path(), 0o755);
        drop(lock(directory.path()).unwrap());
        let us = Uid::effective().as_raw();
        let theirs = check(directory.path(), us + 1).unwrap_err().to_string();
        let expected = format!(
            "belongs to user {us}, and this daemon runs as user {}",
            us + 1
        );
        assert!(theirs.contains(&expected), "{theirs}");
    }

    #[test]
    fn secrets_that_others_can_read_and_files_that_they_can_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let secrets = [
            "ca-key.pem",
            "node.identity",
            "blue.identity",
            "journal.redb",
            "journal.redb.commits",
        ];
        for name in secrets {
            fs::write(at(name), "").unwrap();
            set(&at(name), 0o600);
        }
        drop(lock(directory.path()).unwrap());
        for name in secrets {
            set(&at(name), 0o640);
            let refused = refused(directory.path());
            assert!(
                refused.contains(&format!("others can read {}", at(name).display())),
                "{refused}"
            );
            let mend = format!("`chmod go-rwx {}` mends that", at(name).display());
            assert!(refused.contains(&mend), "{refused}");
            let is_ca = name == "ca-key.pem";
            assert_eq!(refused.contains("renew-ca --new-key"), is_ca, "{refused}");
            set(&at(name), 0o600);
        }
        set(&at("journal.redb"), 0o666);
        assert!(refused(directory.path()).contains("others can write"));
    }

    #[test]
    fn one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made");
        let first = lock(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        let second = refused(&path);
        let in_words = second.contains("another daemon runs") && !second.contains("EAGAIN");
        assert!(in_words, "{second}");
        drop(first);
        drop(lock(&path).unwrap());
    }
}
