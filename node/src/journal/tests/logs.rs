//! A journal whose log is missing, of another time, or in another place.

use super::*;

/// What a start says of these files, which it leaves as they are.
fn refused(scene: &Scene, expected: &str) {
    let of = |path: PathBuf| fs::read(path).ok();
    let before = of(scene.log());
    let error = scene.refused();
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(of(scene.log()), before, "left as it was");
}

#[test]
fn a_log_that_is_missing_of_another_time_or_damaged_is_refused() {
    let scene = Scene::new();
    let (journal, reports) = scene.with_two_commits();
    let cut = scene.copy();
    let log = fs::read(cut.log()).unwrap();
    fs::remove_file(cut.log()).unwrap();
    refused(&cut, "journal.redb.commits, its newest commits, is missing");
    let other = Scene::new();
    let (_other, _reports) = other.with_two_commits();
    fs::copy(other.log(), cut.log()).unwrap();
    refused(
        &cut,
        "is of another journal, or of another time of this one",
    );
    fs::write(cut.log(), &log[..1024]).unwrap();
    refused(&cut, "has another length than its head says");
    fs::write(cut.log(), "").unwrap();
    refused(&cut, "is empty");
    fs::write(cut.log(), &log).unwrap();
    assert_eq!(cut.open().1.commits, 2);
    await_durable(&reports, journal.submit(vec![remove(1)]));
}

#[test]
fn an_older_copy_beside_the_log_of_a_later_run_is_refused_until_the_log_is_moved_away() {
    let scene = Scene::new();
    let (journal, _reports) = scene.with_two_commits();
    journal.close().unwrap();
    let older = fs::read(scene.path()).unwrap();
    let (journal, _, reports) = scene.open();
    await_durable(&reports, journal.submit(vec![put(3, "three")]));
    let cut = scene.copy();
    fs::write(cut.path(), older).unwrap();
    refused(
        &cut,
        "has its commit 3, and it goes up to 2 only: it is an older copy",
    );
    // No journal at all is an older one, too.
    let file = fs::read(cut.path()).unwrap();
    fs::remove_file(cut.path()).unwrap();
    refused(
        &cut,
        "has its commit 3, and it goes up to 0 only: it is an older copy",
    );
    assert!(!cut.path().exists(), "nothing is made in its place");
    fs::write(cut.path(), file).unwrap();
    fs::remove_file(cut.log()).unwrap();
    assert_eq!(leases(&cut.open().1).len(), 2);
}

#[test]
fn an_earlier_version_refuses_the_file_while_there_is_a_log() {
    let scene = Scene::new();
    let (journal, _reports) = scene.with_two_commits();
    let format = |scene: &Scene| {
        let numbers = redb::TableDefinition::<&str, u64>::new("numbers");
        let database = redb::Database::open(scene.path()).unwrap();
        let reading = redb::ReadableDatabase::begin_read(&database).unwrap();
        let table = reading.open_table(numbers).unwrap();
        table.get("format").unwrap().unwrap().value()
    };
    assert_eq!(format(&scene.copy()), 1000 + fabricbios_lease::FORMAT);
    journal.close().unwrap();
    assert_eq!(format(&scene), fabricbios_lease::FORMAT);
}

#[test]
fn what_reads_a_closed_journal_sees_a_log_that_could_not_be_brought_in() {
    let scene = Scene::new();
    let (journal, reports) = scene.with_two_commits();
    let cut = scene.copy();
    // redb alone closes the file, as after a checkpoint that failed.
    drop(redb::Database::open(cut.path()).unwrap());
    let before = [fs::read(cut.path()).unwrap(), fs::read(cut.log()).unwrap()];
    let looked = super::super::store::look(&cut.path()).unwrap();
    assert_eq!((leases(&looked).len(), looked.commits), (2, 2));
    let after = [fs::read(cut.path()).unwrap(), fs::read(cut.log()).unwrap()];
    assert_eq!(before, after, "changed by a look");
    await_durable(&reports, journal.submit(vec![remove(1)]));
}

#[test]
fn only_the_owner_can_read_the_log() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let (_journal, _reports) = scene.with_two_commits();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(scene.path()), mode(scene.log())), (0o600, 0o600));
}
