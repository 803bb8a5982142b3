use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::ALIGN;

fn source(path: &Path) -> Source {
    Source {
        file: Some(path.to_owned()),
        ..Source::default()
    }
}

#[test]
fn a_file_is_one_arenas_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let first = Arena::open(&source(&path), ALIGN).unwrap();
    let second = Arena::open(&source(&path), ALIGN).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
    assert!(second.to_string().contains("arena"), "{second}");
    drop(first);
    Arena::open(&source(&path), ALIGN).unwrap();
}

#[test]
fn a_short_file_grows_and_a_long_one_stays_long() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let short = Arena::open(&source(&path), ALIGN).unwrap();
    short.write(0, b"short").unwrap();
    drop(short);
    drop(Arena::open(&source(&path), 2 * ALIGN).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * ALIGN);
    let long = Arena::open(&source(&path), ALIGN).unwrap();
    assert_eq!(long.bytes(), ALIGN);
    let mut start = [0; 5];
    long.read(0, &mut start).unwrap();
    assert_eq!(&start, b"short");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * ALIGN);
}

#[test]
fn a_file_knows_who_used_it_last_and_a_new_one_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let first = Arena::open(&source(&path), ALIGN).unwrap();
    assert_eq!(first.mark(), None);
    first.set_mark(&[7; 16]);
    drop(first);
    let longer = Arena::open(&source(&path), 2 * ALIGN).unwrap();
    assert_eq!(longer.mark(), Some([7; 16]));
    let mut bytes = [1; 4096];
    longer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096], "the mark is not among the bytes");
    drop(longer);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Arena::open(&source(&path), ALIGN).unwrap().mark(), None);
    assert_eq!(Arena::open(&Source::default(), ALIGN).unwrap().mark(), None);
}

#[test]
fn a_file_that_others_may_touch_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    drop(Arena::open(&source(&path), ALIGN).unwrap());
    for mode in [0o666, 0o640, 0o604] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, permissions).unwrap();
        let error = Arena::open(&source(&path), ALIGN).unwrap_err();
        assert!(error.to_string().contains("mode"), "{error}");
    }
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Arena::open(&source(&link), ALIGN).is_err());
}

#[test]
fn a_file_with_other_data_is_refused_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let private = std::fs::Permissions::from_mode(0o600);
    for bytes in [&b"x"[..], &[0; 8192], b"fabricBIOS is not an arena"] {
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, private.clone()).unwrap();
        let opened = Arena::open(&source(&path), ALIGN).map(drop);
        for refused in [opened, check_file(&path)] {
            let why = refused.unwrap_err().to_string();
            assert!(
                why.contains("choose another path, or remove"),
                "{bytes:?}: {why}"
            );
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    std::fs::write(&path, b"").unwrap();
    check_file(&path).unwrap();
    // Two starts that fail before they mark the file.
    for _ in 0..2 {
        drop(Arena::open(&source(&path), ALIGN).unwrap());
        check_file(&path).unwrap();
    }
}

#[test]
fn a_file_that_is_only_allocated_has_no_data() {
    let file = File::from(memfd_create(c"", MFdFlags::MFD_CLOEXEC).unwrap());
    assert!(!has_data(&file).unwrap());
    allocate(&file, 2 * ALIGN).unwrap();
    assert!(!has_data(&file).unwrap());
    file.write_all_at(&[0], ALIGN).unwrap();
    assert!(has_data(&file).unwrap());
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path(), Path::new("/dev/null")] {
        assert!(Arena::open(&source(path), ALIGN).is_err(), "{path:?}");
    }
}

/// The kernel's own report about the mapping.
fn policy(arena: &Arena) -> String {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
    let start = format!("{:x} ", arena.mapping().address());
    let line = maps.lines().find(|line| line.starts_with(&start));
    line.unwrap_or_default().to_owned()
}

#[test]
fn the_backing_names_a_node_only_if_the_kernel_prefers_it() {
    for numa_node in [None, Some(0), Some(1000), Some(u32::MAX)] {
        let wanted = Source {
            numa_node,
            ..Source::default()
        };
        let arena = Arena::open(&wanted, ALIGN).unwrap();
        let preferred = policy(&arena).contains("prefer:0");
        let told = arena.backing().numa_node;
        assert_eq!(told == Some(0), preferred, "{numa_node:?} {told:?}");
        assert!(told.is_none() || told == numa_node);
    }
}
