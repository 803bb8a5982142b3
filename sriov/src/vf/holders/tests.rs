//! Searches among processes of the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    cell::Cell,
    fs::File,
    process::{Child, Command, id},
    sync::mpsc,
};

use fabricbios_cgroup::holders::tables_of;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn holder_of(file: &Path) -> Child {
    let mut holder = Command::new("sleep");
    holder.arg("600").stdin(File::open(file).unwrap());
    holder.spawn().unwrap()
}

/// Whether the process has a table: one that has ended has none.
fn has_files(pid: &u32) -> bool {
    let tables = tables_of(pid.cast_signed());
    tables.into_iter().flat_map(Table::files).next().is_some()
}

fn tables_of_all(pids: &[u32]) -> Vec<Table> {
    let each = pids.iter().flat_map(|it| tables_of(it.cast_signed()));
    let mut all: Vec<Table> = each.collect();
    all.sort_unstable();
    all
}

/// Searches these processes only; `is_free` says whether the group is free.
fn search(
    group: &Path,
    within: Duration,
    pids: &[u32],
    is_free: &dyn Fn() -> bool,
) -> Result<Ended, Failure> {
    Search {
        group,
        is: identity_at(group),
        until: Instant::now() + within,
        open: &|_| match is_free() {
            true => Ok(()),
            false => Err(Errno::EBUSY.into()),
        },
        is_ours: &|_| false,
        tables: &|| tables_of_all(pids),
        killed: Vec::new(),
        ours: BTreeSet::new(),
        others: Vec::new(),
        refused: Vec::new(),
        ended: Ended::default(),
    }
    .run()
}

#[test]
fn a_process_of_the_node_is_named_and_never_killed() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory.path().join("7");
    fs::write(&group, "").unwrap();
    let mut holder = holder_of(&group);
    let pid = holder.id().cast_signed();
    let mut search = Search {
        group: &group,
        is: identity_at(&group),
        until: Instant::now() + PATIENCE,
        open: &|_| Err(Errno::EBUSY.into()),
        is_ours: &|it| is_of(it, &[id().cast_signed()]),
        tables: &|| tables_of_all(&[holder.id()]),
        killed: Vec::new(),
        ours: BTreeSet::new(),
        others: Vec::new(),
        refused: Vec::new(),
        ended: Ended::default(),
    };
    assert!(search.pass().unwrap());
    assert!(search.killed.is_empty());
    let error = search.still_open().detail;
    assert!(
        error.contains(&format!("{{{pid}}} of this node")),
        "{error}"
    );
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn nobody_is_looked_for_while_the_group_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory.path().join("7");
    let ended = search(&group, PATIENCE, &[], &|| true).unwrap();
    assert_eq!(ended, Ended::default());
}

#[test]
fn every_holder_is_killed_and_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, other) = (directory.path().join("7"), directory.path().join("a/7"));
    fs::create_dir(directory.path().join("a")).unwrap();
    fs::write(&ours, "").unwrap();
    fs::write(&other, "").unwrap();
    let mut children = [holder_of(&ours), holder_of(&ours), holder_of(&other)];
    let pids = children.each_ref().map(Child::id);
    let is_free = || !pids[..2].iter().any(has_files);
    let mut ended = search(&ours, PATIENCE, &pids, &is_free).unwrap().killed;
    ended.sort_unstable();
    let mut expected = [pids[0], pids[1]].map(u32::cast_signed);
    expected.sort_unstable();
    assert_eq!(ended, expected);
    assert!(has_files(&pids[2]));
    for child in &mut children {
        // The killed ones have ended already.
        child.kill().ok();
        child.wait().unwrap();
    }
}

/// The stranger has 100 threads and a table with many files; none of these is read before the holder is found.
#[test]
fn a_stranger_with_many_threads_and_files_does_not_delay_the_end_of_a_holder() {
    const FILES: usize = 500;
    let directory = tempfile::tempdir().unwrap();
    let (group, file) = (directory.path().join("7"), directory.path().join("file"));
    fs::write(&group, "").unwrap();
    fs::write(&file, "").unwrap();
    let many: Vec<File> = (0..FILES).map(|_| File::open(&file).unwrap()).collect();
    let (stay, stays) = mpsc::channel::<()>();
    let stays = std::sync::Mutex::new(stays);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| stays.lock().unwrap().recv().ok());
        }
        let mut holder = holder_of(&group);
        let pid = holder.id();
        let is_free = || !has_files(&pid);
        let ended = search(&group, PATIENCE, &[id(), pid], &is_free).unwrap();
        assert_eq!(ended.killed, [pid.cast_signed()]);
        assert!(ended.files < 100 && ended.tables == 1, "{ended}");
        holder.wait().unwrap();
        // If no holder is found, each pass reads the table once, not once per thread.
        let looks = Cell::new(0);
        let is_free = || looks.replace(looks.get() + 1) > 1;
        let ended = search(&group, PATIENCE, &[id()], &is_free).unwrap();
        assert_eq!(ended.tables, 1, "{ended}");
        assert!(ended.files < 2 * FILES as u64, "{ended}");
        drop(stay);
    });
    drop(many);
}

#[test]
fn a_process_is_a_holder_if_only_a_thread_of_it_has_the_group_open() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory.path().join("7");
    fs::write(&group, "").unwrap();
    let script = "import ctypes, os, sys, threading\n\
                  def run():\n    \
                      ctypes.CDLL(None).unshare(0x400)\n    \
                      os.open(sys.argv[1], os.O_RDONLY)\n    \
                      print(flush=True)\n    \
                      sys.stdin.read()\n\
                  threading.Thread(target=run).start()\n";
    let mut holder = Command::new("python3")
        .args(["-c", script])
        .arg(&group)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
    let pid = holder.id();
    let is_free = || !has_files(&pid);
    let ended = search(&group, PATIENCE, &[pid], &is_free).unwrap();
    assert_eq!(ended.killed, [pid.cast_signed()]);
    holder.wait().unwrap();
}

#[test]
fn a_group_is_known_by_its_number_and_not_by_its_name() {
    let device = |major, minor| Some(Identity::Device((major, minor)));
    assert!(is_group(device(243, 1), device(243, 0)));
    // The file of a user, such as /tmp/vfio/1, and /dev/vfio/vfio are no groups.
    assert!(!is_group(Some(Identity::File((0, 40), 7)), device(243, 0)));
    assert!(!is_group(device(10, 196), device(243, 0)));
    assert!(!is_group(None, device(243, 0)));
}

#[test]
fn a_busy_group_is_not_over_and_its_end_has_a_bound() {
    let group = Path::new("/dev/vfio/7");
    let error = search(group, Duration::from_millis(1), &[], &|| false).unwrap_err();
    assert!(error.detail.contains("/dev/vfio/7"), "{error}");
    assert!(error.detail.contains("not found"), "{error}");
}
