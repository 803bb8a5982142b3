//! Directories as pools, on a file system of this machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, mpsc::channel};

use fabricbios_helper::{Program, Supervisor};
use fabricbios_lease::{AllocationMode, Condition, Extent, Proof, StepError};
use fabricbios_pool::{Pool, PoolConfig};
use fabricbios_wire::{LeaseId, NodeId};
use tempfile::TempDir;

const NODE: NodeId = NodeId([1; 32]);
const OTHER_NODE: NodeId = NodeId([2; 32]);
const LEASE: LeaseId = LeaseId(0xA1);
const BYTES: u64 = 1 << 20;
const EXTENT: Extent = Extent {
    offset: 0,
    length: BYTES,
};

/// A directory to which no other user can write, whatever the umask.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    place
}

/// One supervisor for all tests of this process.
fn supervisor() -> Supervisor {
    static STARTED: OnceLock<Supervisor> = OnceLock::new();
    let start = || {
        let program = Path::new(env!("CARGO_BIN_EXE_fabricbios-pool-calls"));
        let program = Program::copy_of(program).unwrap();
        Supervisor::start(&program, "supervisor", tempfile::tempfile().unwrap()).unwrap()
    };
    STARTED.get_or_init(start).clone()
}

fn config(path: &Path) -> PoolConfig {
    PoolConfig {
        path: path.to_owned(),
        node_id: NODE,
        force: false,
        may_begin: true,
        supervisor: supervisor(),
    }
}

fn open(place: &TempDir) -> Pool {
    Pool::open(config(place.path())).unwrap()
}

fn refusal(config: PoolConfig) -> String {
    Pool::open(config).unwrap_err().to_string()
}

fn volume_path(place: &TempDir) -> PathBuf {
    place.path().join(format!("{LEASE}.volume"))
}

fn names(place: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(place.path()).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
    names.sort();
    names
}

fn destroy(pool: &Pool) -> Result<Proof, StepError> {
    pool.destroy(LEASE, Some(EXTENT), &|| ())
}

#[test]
fn a_volume_is_all_zeros_allocated_and_ours_alone() {
    let place = place();
    let volume = open(&place).create(LEASE, EXTENT).unwrap();
    assert_eq!(volume.path, volume_path(&place).canonicalize().unwrap());
    assert_eq!((volume.bytes, volume.read_only), (BYTES, false));
    let metadata = fs::metadata(&volume.path).unwrap();
    assert_eq!(metadata.len(), BYTES);
    assert!(metadata.blocks() * 512 >= BYTES, "its bytes are promised");
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert!(
        fs::read(&volume.path)
            .unwrap()
            .iter()
            .all(|&byte| byte == 0)
    );
    assert_eq!(names(&place).len(), 2, "the marker and the volume");
}

#[test]
fn facts_are_the_file_systems() {
    let place = place();
    let pool = open(&place);
    let facts = pool.facts().clone();
    assert_eq!(facts.allocation_mode, AllocationMode::Amounts);
    assert_eq!(facts.name, place.path().display().to_string());
    assert!((512..=4096).contains(&facts.block_bytes) && facts.align >= 4096);
    assert!(facts.capacity > BYTES && facts.capacity.is_multiple_of(facts.align));
    drop(pool);
    assert_eq!(open(&place).facts().identity, facts.identity);
    let another = self::place();
    assert_ne!(open(&another).facts().identity, facts.identity);
}

#[test]
fn the_next_volume_has_nothing_of_the_one_before() {
    let place = place();
    let pool = open(&place);
    let volume = pool.create(LEASE, EXTENT).unwrap();
    fs::write(&volume.path, vec![0xEE; 1 << 20]).unwrap();
    let mut still_open = File::open(&volume.path).unwrap();
    let cleaned = destroy(&pool).unwrap().to_string();
    let bytes = format!("{} bytes: file removed", EXTENT.length);
    assert!(cleaned.contains(&bytes), "{cleaned}");
    assert!(!volume.path.exists());
    assert_eq!(pool.leases().unwrap(), []);
    let next = pool.create(LeaseId(0xA2), EXTENT).unwrap();
    assert!(fs::read(&next.path).unwrap().iter().all(|&byte| byte == 0));
    let mut old = Vec::new();
    still_open.read_to_end(&mut old).unwrap();
    assert!(old.iter().all(|&byte| byte == 0xEE), "another file");
}

#[test]
fn destroying_again_or_nothing_is_done_already() {
    let place = place();
    let pool = open(&place);
    destroy(&pool).unwrap();
    pool.create(LEASE, EXTENT).unwrap();
    destroy(&pool).unwrap();
    pool.destroy(LEASE, None, &|| ()).unwrap();
    assert_eq!(names(&place), [".fabricbios-pool"]);
}

#[test]
fn destroying_tells_of_its_progress() {
    let place = place();
    let pool = open(&place);
    pool.create(LEASE, EXTENT).unwrap();
    let calls = std::cell::Cell::new(0);
    let count = || calls.set(calls.get() + 1);
    pool.destroy(LEASE, None, &count).unwrap();
    assert!(calls.get() > 0);
}

#[test]
fn what_a_crash_left_half_made_goes_and_other_files_stay() {
    let place = place();
    drop(open(&place));
    let stray = place.path().join(format!("{LEASE}.volume.new"));
    fs::write(&stray, "half").unwrap();
    let others = ["letter.txt", "x.volume", "0.volume.new", ".hidden"];
    for other in others {
        fs::write(place.path().join(other), "kept").unwrap();
    }
    let pool = open(&place);
    assert!(!stray.exists());
    assert_eq!(pool.leases().unwrap(), []);
    pool.create(LEASE, EXTENT).unwrap();
    destroy(&pool).unwrap();
    for other in others {
        assert_eq!(fs::read(place.path().join(other)).unwrap(), b"kept");
    }
}

#[test]
fn a_half_made_one_of_this_process_is_in_nobodys_way() {
    let place = place();
    let pool = open(&place);
    let stray = place.path().join(format!("{LEASE}.volume.new"));
    fs::write(&stray, "half").unwrap();
    pool.create(LEASE, EXTENT).unwrap();
    assert!(!stray.exists());
}

/// Makes a wrong object under the name of a volume, and checks the error.
fn refused(make: impl Fn(&Path), told: &str) {
    let place = place();
    let pool = open(&place);
    let path = volume_path(&place);
    make(&path);
    let error = pool.create(LEASE, EXTENT).unwrap_err().to_string();
    let lease = LEASE.to_string();
    assert!(error.contains(told) && error.contains(&lease), "{error}");
    assert!(path.symlink_metadata().is_ok(), "it is not deleted blindly");
    assert!(matches!(pool.condition(), Condition::Degraded(_)));
    drop(pool);
    let pool = open(&place);
    assert_eq!(pool.leases().unwrap(), [LEASE], "it is told");
}

fn file_of(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_symbolic_link_under_a_volumes_name_is_refused() {
    let elsewhere = place();
    let victim = elsewhere.path().join("victim");
    file_of(&victim, BYTES);
    refused(|path| symlink(&victim, path).unwrap(), "a symbolic link");
    assert_eq!(victim.metadata().unwrap().len(), BYTES);
}

#[test]
fn a_file_with_two_names_is_refused() {
    let two_names = |path: &Path| {
        file_of(path, BYTES);
        fs::hard_link(path, path.with_extension("other")).unwrap();
    };
    refused(two_names, "has 2 names");
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let readable = |path: &Path| {
        file_of(path, BYTES);
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    };
    refused(readable, "has mode 644");
}

#[test]
fn a_file_of_another_size_or_a_directory_is_refused() {
    refused(|path| file_of(path, BYTES / 2), "524288 bytes and not");
    refused(|path| fs::create_dir(path).unwrap(), "no regular file");
}

#[test]
fn destroying_a_link_takes_the_name_and_not_what_it_leads_to() {
    let (place, elsewhere) = (place(), self::place());
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let pool = open(&place);
    symlink(&victim, volume_path(&place)).unwrap();
    destroy(&pool).unwrap();
    assert!(volume_path(&place).symlink_metadata().is_err());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_second_daemon_is_told_that_the_pool_is_busy() {
    let place = place();
    let pool = open(&place);
    let error = refusal(config(place.path()));
    assert!(error.contains("busy"), "{error}");
    let forced = PoolConfig {
        force: true,
        ..config(place.path())
    };
    assert!(refusal(forced).contains("busy"), "not by force either");
    drop(pool);
    open(&place);
}

#[test]
fn where_a_pool_should_be_and_is_not_nothing_is_made() {
    let place = place();
    let expecting = || PoolConfig {
        may_begin: false,
        ..config(place.path())
    };
    let error = refusal(expecting());
    assert!(error.contains(".fabricbios-pool"), "{error}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    // A marker that a crash has left empty.
    let marker = place.path().join(".fabricbios-pool");
    fs::write(&marker, "").unwrap();
    fs::set_permissions(&marker, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(refusal(expecting()).contains("no pool"));
    let identity = open(&place).facts().identity;
    assert_eq!(Pool::open(expecting()).unwrap().facts().identity, identity);
}

#[test]
fn another_nodes_pool_is_taken_by_force_only_and_with_its_volumes() {
    let place = place();
    let pool = open(&place);
    let identity = pool.facts().identity;
    pool.create(LEASE, EXTENT).unwrap();
    drop(pool);
    let other = |force| PoolConfig {
        node_id: OTHER_NODE,
        force,
        ..config(place.path())
    };
    let error = refusal(other(false));
    assert!(error.contains(&NODE.to_string()), "{error}");
    let taken = Pool::open(other(true)).unwrap();
    assert_eq!(taken.leases().unwrap(), [LEASE]);
    assert_eq!(taken.facts().identity, identity);
    drop(taken);
    assert!(refusal(config(place.path())).contains(&OTHER_NODE.to_string()));
}

#[test]
fn a_marker_that_is_none_is_refused() {
    let place = place();
    let marker = place.path().join(".fabricbios-pool");
    file_of(&marker, 0);
    drop(open(&place));
    let whole = fs::read_to_string(&marker).unwrap();
    let first_line = whole.lines().next().unwrap();
    let damaged = format!("{first_line}\nidentity 1\nnode 2\ngrants 3\n");
    let other = whole.replace(first_line, "fabricbios-pool 99");
    for (text, why) in [
        ("hello", "no marker"),
        (first_line, "no marker"),
        (&damaged, "no marker"),
        (&other, "format 99"),
    ] {
        fs::write(&marker, text).unwrap();
        let error = refusal(config(place.path()));
        assert!(error.contains(why) && error.contains("--force"), "{error}");
        assert!(error.contains(&marker.display().to_string()), "{error}");
    }
    fs::remove_file(&marker).unwrap();
    let elsewhere = self::place();
    symlink(elsewhere.path().join("target"), &marker).unwrap();
    assert!(refusal(config(place.path())).contains(".fabricbios-pool"));
    assert!(!elsewhere.path().join("target").exists());
}

#[test]
fn a_directory_with_volumes_and_without_a_marker_is_nobodys_to_take() {
    let place = place();
    open(&place).create(LEASE, EXTENT).unwrap();
    let marker = place.path().join(".fabricbios-pool");
    fs::write(&marker, "").unwrap();
    let error = refusal(config(place.path()));
    assert!(error.contains("--force"), "{error}");
    fs::remove_file(&marker).unwrap();
    let error = refusal(config(place.path()));
    assert!(error.contains("--force"), "{error}");
    assert_eq!(names(&place), [format!("{LEASE}.volume")]);
    let forced = PoolConfig {
        force: true,
        ..config(place.path())
    };
    assert_eq!(Pool::open(forced).unwrap().leases().unwrap(), [LEASE]);
}

#[test]
fn a_grant_is_counted_in_the_marker_of_its_own_pool_only() {
    let (place, other) = (place(), self::place());
    let pool = open(&place);
    pool.count_grant(1).unwrap();
    drop(open(&other));
    let marker = |place: &TempDir| place.path().join(".fabricbios-pool");
    fs::rename(marker(&other), marker(&place)).unwrap();
    let theirs = fs::read(marker(&place)).unwrap();
    let error = pool.count_grant(2).unwrap_err().to_string();
    assert!(error.contains("another pool"), "{error}");
    assert_eq!(fs::read(marker(&place)).unwrap(), theirs);
    let victim = other.path().join("victim");
    fs::write(&victim, "theirs").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(marker(&place)).unwrap();
    fs::hard_link(&victim, marker(&place)).unwrap();
    let error = pool.count_grant(2).unwrap_err().to_string();
    assert!(error.contains("2 names"), "{error}");
    assert_eq!(fs::read(&victim).unwrap(), b"theirs");
}

#[test]
fn a_directory_that_others_can_write_is_refused_with_what_to_do() {
    let place = place();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o770)).unwrap();
    let error = refusal(config(place.path()));
    assert!(error.contains("chmod go-w"), "{error}");
}

#[test]
fn what_is_neither_directory_nor_device_is_refused() {
    let place = place();
    let absent = refusal(config(&place.path().join("absent")));
    assert!(
        absent.contains("absent") && absent.contains("No such file"),
        "{absent}"
    );
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let error = refusal(config(&file));
    assert!(
        error.contains("neither a directory nor a block device"),
        "{error}"
    );
    assert!(refusal(config(Path::new("/dev/null"))).contains("neither"));
}

#[test]
fn no_space_is_told_and_leaves_nothing_until_there_is_some() {
    let place = place();
    let pool = open(&place);
    let too_much = Extent {
        offset: 0,
        length: 1 << 60,
    };
    let error = pool.create(LEASE, too_much).unwrap_err();
    assert!(error.errno.is_some(), "the helper's number is kept");
    assert!(error.to_string().contains("free"), "{error}");
    assert_eq!(names(&place), [".fabricbios-pool"]);
    assert_eq!(pool.leases().unwrap(), []);
    assert!(matches!(pool.condition(), Condition::Degraded(_)));
    pool.create(LEASE, EXTENT).unwrap();
    assert_eq!(pool.condition(), Condition::Good);
}

#[test]
fn parts_of_blocks_and_nothing_are_no_volumes() {
    let place = place();
    let pool = open(&place);
    for length in [0, 1, 513] {
        let extent = Extent { offset: 0, length };
        let error = pool.create(LEASE, extent).unwrap_err().to_string();
        assert!(error.contains("whole blocks"), "{error}");
    }
    assert_eq!(
        pool.condition(),
        Condition::Good,
        "it was the caller's fault"
    );
}

#[test]
fn a_directory_that_was_exchanged_is_not_written_to() {
    let above = place();
    let path = above.path().join("pool");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let pool = Pool::open(config(&path)).unwrap();
    fs::rename(&path, above.path().join("moved")).unwrap();
    assert!(pool.create(LEASE, EXTENT).is_err());
    fs::create_dir(&path).unwrap();
    let error = pool.create(LEASE, EXTENT).unwrap_err().to_string();
    assert!(error.contains("another directory"), "{error}");
    assert!(pool.destroy(LEASE, None, &|| ()).is_err());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

/// Without the marker no grant can be counted.
#[test]
fn a_directory_without_its_marker_cannot_be_had_until_it_is_back() {
    let place = place();
    let pool = open(&place);
    let (tell, told) = channel();
    pool.tell_condition(Box::new(move |it| drop(tell.send(it))));
    let [marker, aside] = [".fabricbios-pool", "aside"].map(|it| place.path().join(it));
    fs::rename(&marker, &aside).unwrap();
    let Condition::Unavailable(why) = told.recv().unwrap() else {
        panic!("it can be had");
    };
    assert!(why.contains(&marker.display().to_string()), "{why}");
    fs::rename(aside, marker).unwrap();
    assert_eq!(told.recv().unwrap(), Condition::Good);
}

#[test]
fn who_cannot_make_a_call_says_so_and_makes_nothing() {
    let place = place();
    let pool = Pool::open(PoolConfig {
        supervisor: Supervisor::of_threads(Vec::new()),
        ..config(place.path())
    });
    let pool = pool.unwrap();
    let created = pool.create(LEASE, EXTENT).unwrap_err();
    let destroyed = destroy(&pool).unwrap_err();
    for error in [created.to_string(), destroyed.to_string()] {
        assert!(error.contains("\"wipe\""), "{error}");
    }
    assert_eq!(pool.leases().unwrap(), [], "nothing was made");
}

#[test]
fn the_number_of_the_latest_grant_outlives_the_process_and_is_each_nodes_own() {
    let place = place();
    let pool = open(&place);
    assert_eq!(pool.grants(), Some(0));
    pool.count_grant(7).unwrap();
    pool.count_grant(5).unwrap();
    drop(pool);
    let pool = open(&place);
    assert_eq!((pool.grants(), pool.is_taken_over()), (Some(7), false));
    drop(pool);
    let taken = Pool::open(PoolConfig {
        node_id: NodeId([9; 32]),
        force: true,
        ..config(place.path())
    });
    let taken = taken.unwrap();
    assert_eq!((taken.grants(), taken.is_taken_over()), (Some(0), true));
}
