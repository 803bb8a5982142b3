//! A file of memory and its owner: only root can give a file away.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says why")]

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
};

use fabricbios_arena::{ALIGN, Arena, Source};

#[test]
#[ignore = "needs root"]
fn a_file_of_another_user_is_named_with_its_owner_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    // As /dev/shm, where the kernel itself may refuse to open it (fs.protected_regular).
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    let path = directory.path().join("arena");
    fs::write(&path, "").unwrap();
    chown(&path, Some(12_345), None).unwrap();
    let source = Source {
        file: Some(path),
        ..Source::default()
    };
    let why = Arena::open(&source, ALIGN).unwrap_err().to_string();
    assert!(
        why.contains("owner 12345") && why.contains("(chown 0 and"),
        "{why}"
    );
}
