mod checkpoint;
mod counter;
mod damage;
mod earlier;
mod line;
mod logs;
mod power_cut;

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use super::{counter::Counters, line::Commits, meter::Meter, store::Store, *};

/// Faults of a disk, and the operations that the journal has requested. A fault stays until the test removes it.
#[derive(Debug, Default)]
pub(super) struct Faults {
    sync: AtomicBool,
    write: AtomicBool,
    full: AtomicBool,
    asked: Mutex<Vec<Asked>>,
    /// A test that holds this holds the syncs of the journal's file.
    gate: Mutex<()>,
    /// A test that holds this holds the syncs of the log.
    log_gate: Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Base,
    Log,
}

#[derive(Clone, Debug)]
enum Asked {
    Write(Which, u64, Vec<u8>),
    SetLen(u64),
    Sync(Which),
    /// The log is an empty file.
    NewLog,
}

impl Faults {
    pub(super) fn on_sync(&self, synced: io::Result<()>) -> io::Result<()> {
        drop(self.gate.lock().unwrap());
        self.sync_of(Which::Base, synced)
    }

    pub(super) fn on_log_sync(&self, synced: io::Result<()>) -> io::Result<()> {
        drop(self.log_gate.lock().unwrap());
        self.sync_of(Which::Log, synced)
    }

    fn sync_of(&self, which: Which, synced: io::Result<()>) -> io::Result<()> {
        self.note(Asked::Sync(which));
        let fails = self.sync.load(Ordering::SeqCst);
        if fails {
            Err(io::Error::from_raw_os_error(5))
        } else {
            synced
        }
    }

    pub(super) fn on_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_of(Which::Base, offset, data)
    }

    pub(super) fn on_log_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_of(Which::Log, offset, data)
    }

    fn write_of(&self, which: Which, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Asked::Write(which, offset, data.to_vec()));
        let fails = self.write.load(Ordering::SeqCst);
        if fails {
            Err(io::Error::from_raw_os_error(28))
        } else {
            Ok(())
        }
    }

    pub(super) fn on_set_len(&self, len: u64) {
        self.note(Asked::SetLen(len));
    }

    pub(super) fn on_new_log(&self) {
        self.note(Asked::NewLog);
    }

    /// Whether the disk has no space for a log.
    pub(super) fn has_no_space(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    fn is_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

type Report = Result<Seq, CommitError>;

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        // Some tests open a journal some thousand times: a disk that is busy would make minutes of that.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { dir: dir.unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("journal.redb")
    }

    fn open(&self) -> (Journal, Recovered, Receiver<Report>) {
        let (tell, reports) = channel();
        let (journal, recovered) = open_at(&self.path(), tell).unwrap();
        (journal, recovered, reports)
    }

    /// Each commit has one lease.
    fn with_two_commits(&self) -> (Journal, Receiver<Report>) {
        let (journal, _first, reports) = self.open();
        await_durable(&reports, journal.submit(vec![put(1, "one")]));
        await_durable(&reports, journal.submit(vec![put(2, "two")]));
        (journal, reports)
    }

    /// Changes the number of the format in the file.
    fn set_format(&self, format: u64) {
        let numbers = redb::TableDefinition::<&str, u64>::new("numbers");
        let database = redb::Database::open(self.path()).unwrap();
        let writing = database.begin_write().unwrap();
        { writing.open_table(numbers).unwrap() }
            .insert("format", format)
            .unwrap();
        writing.commit().unwrap();
    }

    /// Both files, as a power cut now would leave them.
    fn copy(&self) -> Scene {
        let copy = Scene::new();
        fs::copy(self.path(), copy.path()).unwrap();
        if self.log().exists() {
            fs::copy(self.log(), copy.log()).unwrap();
        }
        copy
    }

    fn log(&self) -> PathBuf {
        log::path_of(&self.path())
    }

    fn refused(&self) -> JournalError {
        open_store(&self.path()).unwrap_err()
    }
}

fn open_at(path: &Path, tell: Sender<Report>) -> Result<(Journal, Recovered), JournalError> {
    // The receiver is gone when the test ends before the journal.
    let on_commit = Box::new(move |report| drop(tell.send(report)));
    Journal::open_here(path, "boot-1", on_commit)
}

/// The contents of the file, read by the store.
fn open_store(path: &Path) -> Result<Recovered, JournalError> {
    Store::open(path, on("boot-1"), Arc::default()).map(|(_store, recovered)| recovered)
}

fn on(boot_id: &str) -> Counters {
    Counters {
        directory: None,
        boot_id: boot_id.to_owned(),
    }
}

/// Opens the journal with a disk whose faults the test controls.
fn open_metered(path: &Path, tell: Sender<Report>, meter: &Arc<Meter>) -> Journal {
    let (run_as, on_commit) = (RunAs::Thread(Arc::clone(meter)), move |report| {
        drop(tell.send(report));
    });
    Journal::open_as(run_as, path, "b", Box::new(on_commit))
        .unwrap()
        .0
}

fn put(id: u128, value: &str) -> Change {
    Change::put(Key::Lease(LeaseId(id)), value.as_bytes().to_vec())
}

fn fence(id: u128) -> Change {
    Change::put(Key::Fence(ResourceId(id)), b"fence".to_vec())
}

fn await_durable(reports: &Receiver<Report>, seq: Seq) {
    while reports.recv().unwrap().is_ok_and(|durable| durable < seq) {}
}

fn remove(id: u128) -> Change {
    Change::remove(Key::Lease(LeaseId(id)))
}

fn leases(recovered: &Recovered) -> Vec<(u128, &str)> {
    let mut leases = Vec::new();
    for (key, value) in &recovered.records {
        if let Key::Lease(id) = key {
            leases.push((id.0, std::str::from_utf8(value).unwrap()));
        }
    }
    leases
}

fn fences(recovered: &Recovered) -> usize {
    let fences = recovered.records.keys();
    fences.filter(|key| matches!(key, Key::Fence(_))).count()
}

#[test]
fn a_boot_counts_once_leases_are_written_down_on_it() {
    let scene = Scene::new();
    let commit = |boot, change: Change| {
        let (mut store, found) = Store::open(&scene.path(), on(boot), Arc::default()).unwrap();
        store.commit([(change.key, change.value)].into()).unwrap();
        (found.last_boot_id, found.written_unix_ms)
    };
    let of = |(boot, _): &(Option<String>, u64)| boot.clone();
    let one = Some("one".to_owned());
    let pool = || Change::put(Key::Pool(1), b"pool".to_vec());
    assert_eq!(commit("one", put(1, "on one")), (None, 0));
    let second = commit("two", pool());
    assert_eq!(of(&second), one);
    // The start on the second boot died before it had taken up the lease: the next one compares the clock with the last
    // write of the first boot.
    let third = commit("two", put(1, "on two"));
    assert_eq!(third, second);
    assert_eq!(of(&commit("two", pool())).as_deref(), Some("two"));
}

#[test]
fn a_process_that_replaces_another_writes_the_boot() {
    let scene = Scene::new();
    let change = put(1, "on one");
    drop(Store::open(&scene.path(), on("one"), Arc::default()).unwrap());
    let (mut store, _) = Store::resume(&scene.path(), on("one"), Arc::default()).unwrap();
    store.commit([(change.key, change.value)].into()).unwrap();
    drop(store);
    let (_store, found) = Store::open(&scene.path(), on("one"), Arc::default()).unwrap();
    assert_eq!(found.last_boot_id.as_deref(), Some("one"));
}

#[test]
fn reopening_sees_what_was_durable() {
    let scene = Scene::new();
    let (journal, first, reports) = scene.open();
    assert_eq!(
        (first.epoch, first.last_boot_id, first.records.len()),
        (Epoch(1), None, 0)
    );
    journal.submit(vec![put(1, "one"), put(2, "two"), fence(9)]);
    let seq = journal.submit(vec![put(2, "new"), remove(1), put(3, "x")]);
    await_durable(&reports, seq);
    // The journal is dropped without a close, as by a crash of the process.
    drop(journal);
    let (journal, second, _reports) = scene.open();
    assert_eq!(
        (second.epoch, second.last_boot_id.as_deref()),
        (Epoch(2), Some("boot-1"))
    );
    assert_eq!(leases(&second), [(2, "new"), (3, "x")]);
    assert_eq!(
        second.records[&Key::Fence(ResourceId(9))],
        b"fence".to_vec().into()
    );
    journal.submit(vec![Change::remove(Key::Fence(ResourceId(9))), remove(7)]);
    journal.close().unwrap();
    let (_journal, third, _reports) = scene.open();
    assert_eq!(
        (third.epoch, fences(&third), leases(&third).len()),
        (Epoch(3), 0, 2)
    );
}

#[test]
fn what_is_added_goes_with_the_next_submission_or_the_close() {
    let scene = Scene::new();
    let (journal, _first, reports) = scene.open();
    journal.writer().add(vec![fence(9)]);
    await_durable(&reports, journal.submit(vec![put(1, "one")]));
    assert_eq!(journal.counts().commits, 1);
    let copy = scene.copy();
    let (_journal, recovered, _reports) = copy.open();
    assert_eq!((leases(&recovered).len(), fences(&recovered)), (1, 1));
    journal.writer().add(vec![fence(8)]);
    journal.close().unwrap();
    let (_journal, recovered, _reports) = scene.open();
    assert_eq!(fences(&recovered), 2);
}

#[test]
fn a_copy_taken_between_commits_is_the_state_of_the_last_one() {
    let scene = Scene::new();
    let (journal, reports) = scene.with_two_commits();
    let cut = scene.copy();
    await_durable(&reports, journal.submit(vec![put(3, "three")]));
    let (_journal, recovered, _reports) = cut.open();
    assert_eq!(leases(&recovered), [(1, "one"), (2, "two")]);
}

#[test]
fn who_waits_for_a_write_goes_on_when_it_is_on_the_disk() {
    let scene = Scene::new();
    let (journal, first, _reports) = scene.open();
    assert!(first.records.is_empty());
    let writer = journal.writer();
    let seq = writer.submit(vec![
        Change::put(Key::Pool(7), b"seven".to_vec()),
        Change::put(Key::Pool(8), b"eight".to_vec()),
    ]);
    writer.wait(seq).unwrap();
    let seq = writer.submit(vec![Change::remove(Key::Pool(8))]);
    writer.wait(seq).unwrap();
    // The journal is dropped without a close, as by a crash of the process.
    drop(journal);
    let (_journal, second, _reports) = scene.open();
    assert_eq!(
        second.records,
        [(Key::Pool(7), b"seven".to_vec().into())].into()
    );
}

#[test]
fn a_failed_group_never_replaces_what_came_during_it() {
    let shared = Arc::new(SharedQueue::default());
    let journal = Journal {
        path: PathBuf::new(),
        shared: Arc::clone(&shared),
        pid: Arc::default(),
        ended: None,
    };
    journal.submit(vec![put(1, "older"), put(2, "kept")]);
    let failed = shared.next_group().unwrap().group;
    journal.submit(vec![put(1, "newer")]);
    shared.lock().put_back(failed);
    let Commits { group, seq, .. } = shared.next_group().unwrap();
    let value = |id| {
        group[&Key::Lease(LeaseId(id))]
            .as_deref()
            .map(Vec::as_slice)
    };
    assert_eq!(
        (value(1), value(2), seq),
        (Some(&b"newer"[..]), Some(&b"kept"[..]), Seq(2))
    );
}

#[test]
fn what_comes_during_a_commit_goes_into_one_group() {
    let scene = Scene::new();
    let (entered, at_report) = channel();
    let (release, gate) = channel::<()>();
    // The journal's thread stays in the report of the first group while the test submits the other changes.
    let on_commit = move |report: Report| {
        let first = report == Ok(Seq(1));
        entered.send(report).unwrap_or_default();
        if first {
            gate.recv().unwrap_or_default();
        }
    };
    let (journal, _) = Journal::open_here(&scene.path(), "boot-1", Box::new(on_commit)).unwrap();
    assert_eq!(journal.submit(vec![put(0, "first")]), Seq(1));
    assert_eq!(at_report.recv().unwrap(), Ok(Seq(1)));
    let before = journal.counts();
    for id in 1..=500 {
        journal.submit(vec![put(id, "value"), fence(id)]);
    }
    release.send(()).unwrap();
    assert_eq!(at_report.recv().unwrap(), Ok(Seq(501)));
    let after = journal.counts();
    assert_eq!(after.commits - before.commits, 1);
    assert_eq!(after.syncs - before.syncs, 1, "fdatasyncs of one group");
    journal.close().unwrap();
    assert_eq!(leases(&scene.open().1).len(), 501);
}

#[test]
fn after_a_full_disk_nothing_is_claimed_and_nothing_is_lost() {
    survives_fault(
        |faults, on| faults.write.store(on, Ordering::SeqCst),
        "No space left",
    );
}

#[test]
fn after_a_failed_sync_the_file_is_written_anew() {
    let (before, after) = survives_fault(
        |faults, on| faults.sync.store(on, Ordering::SeqCst),
        "Input/output error",
    );
    assert_ne!(before, after, "the file whose sync failed is still in use");
}

/// Returns the inode of the journal before and after the fault.
fn survives_fault(set: impl Fn(&Faults, bool), said: &str) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let scene = Scene::new();
    let inode = || fs::metadata(scene.path()).unwrap().ino();
    let (tell, reports) = channel();
    let meter = Arc::<Meter>::default();
    let journal = open_metered(&scene.path(), tell, &meter);
    await_durable(
        &reports,
        journal.submit(vec![put(1, "old"), put(2, "stays")]),
    );
    let before = inode();
    set(&meter.faults, true);
    journal.submit(vec![put(1, "middle"), put(3, "three")]);
    let error = reports.recv().unwrap().unwrap_err().to_string();
    assert!(
        error.contains(said) && error.contains("journal.redb"),
        "{error}"
    );
    let last = journal.submit(vec![put(1, "new")]);
    assert!(
        reports.recv().unwrap().is_err(),
        "claimed durable on a failing disk"
    );
    set(&meter.faults, false);
    let durable = reports.iter().find_map(Result::ok);
    assert_eq!(durable, Some(last));
    drop(journal);
    assert_eq!(
        leases(&scene.open().1),
        [(1, "new"), (2, "stays"), (3, "three")]
    );
    (before, inode())
}
