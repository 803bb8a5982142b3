//! A journal that is damaged, or none.

use fabricbios_lease::FORMAT;

use super::*;

const VALUE: &str = "a value of some length";

/// The file of a journal with so many leases.
fn written(scene: &Scene, leases: u128) -> Vec<u8> {
    let (journal, ..) = scene.open();
    journal.submit((0..leases).map(|id| put(id, VALUE)).collect());
    journal.close().unwrap();
    fs::read(scene.path()).unwrap()
}

#[test]
fn a_truncated_file_is_an_error_at_every_length() {
    let scene = Scene::new();
    let whole = written(&scene, 200);
    let mut lengths = vec![0, 1, 63, 64, 100, 320, 4095, 4096, 4097, 8192, 65_536];
    lengths.extend([whole.len() / 2, whole.len() - 4096, whole.len() - 1]);
    for length in lengths {
        fs::write(scene.path(), &whole[..length]).unwrap();
        let refused = scene.refused();
        assert!(
            matches!(refused, JournalError::Damaged { .. }),
            "{length} bytes: {refused}"
        );
        assert!(
            refused.to_string().contains("move the file away"),
            "{refused}"
        );
        assert_eq!(
            fs::metadata(scene.path()).unwrap().len(),
            length as u64,
            "left as it was"
        );
    }
    fs::write(scene.path(), &whole).unwrap();
    assert_eq!(leases(&scene.open().1).len(), 200);
}

#[test]
fn a_flipped_byte_never_passes_for_a_record() {
    let scene = Scene::new();
    let whole = written(&scene, 1);
    let places: Vec<_> = (0..whole.len())
        .filter(|&at| whole[at..].starts_with(VALUE.as_bytes()))
        .collect();
    assert!(!places.is_empty());
    let mut damaged = whole.clone();
    places.iter().for_each(|&at| damaged[at] ^= 1);
    fs::write(scene.path(), &damaged).unwrap();
    let refused = scene.refused();
    assert!(matches!(refused, JournalError::Damaged { .. }), "{refused}");
}

#[test]
fn damage_anywhere_is_found_or_harmless() {
    let scene = Scene::new();
    let whole = written(&scene, 200);
    // Every fourth byte of the header, then 60 places in the rest.
    let places = (0..320)
        .step_by(4)
        .chain((320..whole.len()).step_by(whole.len() / 60));
    let mut found = 0;
    for at in places {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xFF;
        fs::write(scene.path(), &damaged).unwrap();
        match open_store(&scene.path()) {
            Ok(recovered) => assert_eq!(leases(&recovered).len(), 200, "byte {at}"),
            Err(JournalError::Damaged { .. }) => found += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(found > 0);
}

#[test]
fn after_a_crash_damage_never_brings_back_an_earlier_commit() {
    for another_follows in [true, false] {
        let scene = Scene::new();
        let (journal, reports) = scene.with_two_commits();
        // No half of the log holds this one: the file has it and those before, and the log only those behind it.
        let big = "big".repeat(30_000);
        await_durable(&reports, journal.submit(vec![put(4, &big)]));
        if another_follows {
            await_durable(&reports, journal.submit(vec![remove(4)]));
        }
        // A power cut leaves the files without a close.
        let cut = scene.copy();
        let whole = fs::read(cut.path()).unwrap();
        let log = fs::read(cut.log()).unwrap();
        let undamaged = open_store(&cut.path()).unwrap();
        let all = leases(&undamaged);
        assert_eq!(all.len(), if another_follows { 2 } else { 3 });
        // Every bit of the part of the header without a checksum; one of each further byte of it; in the rest, the
        // beginnings of pages that are not empty.
        let pages = whole.chunks(4096).enumerate().skip(1);
        let used = pages.filter(|(_, page)| page.iter().any(|&byte| byte != 0));
        let beginnings = used.flat_map(|(at, _)| [(at * 4096, 1), (at * 4096 + 8, 1)]);
        let unchecked = (0..64).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit)));
        let header = unchecked.chain((64..320).map(|at| (at, 1 << (at % 8))));
        let mut found = 0;
        for (at, bits) in header.chain(beginnings) {
            let mut damaged = whole.clone();
            damaged[at] ^= bits;
            fs::write(cut.path(), &damaged).unwrap();
            fs::write(cut.log(), &log).unwrap();
            match open_store(&cut.path()) {
                Ok(recovered) => assert_eq!(leases(&recovered), all, "byte {at}, bits {bits}"),
                Err(JournalError::Damaged { .. }) => found += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        assert!(found > 0);
    }
}

#[test]
fn a_file_of_something_else_or_of_another_format_is_refused() {
    let scene = Scene::new();
    fs::write(
        scene.path(),
        "not a journal, but long enough to be looked at".repeat(500),
    )
    .unwrap();
    assert!(matches!(scene.refused(), JournalError::Damaged { .. }));
    assert!(matches!(
        open_store(Path::new("/proc/none/journal.redb")),
        Err(JournalError::Io { .. })
    ));
    let other = Scene::new();
    other.open().0.close().unwrap();
    other.set_format(FORMAT + 1);
    let refused = other.refused().to_string();
    let expected = format!(
        "journal {}: it has format {}, and this version of the node reads formats 8 to {FORMAT}: start the version that wrote it",
        other.path().display(),
        FORMAT + 1
    );
    assert!(refused.starts_with(&expected), "{refused}");
}
