//! The lab's disks: loop devices over files in memory, and device-mapper on top of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fabricbios_helper::{Program, Supervisor};
use fabricbios_lease::{Extent, Proof, StepError};
use fabricbios_pool::{Pool, PoolConfig};
use fabricbios_wire::{LeaseId, NodeId};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const DISK_BYTES: u64 = 16 * MIB;
/// Offset of the first lease on a disk.
pub(crate) const DATA_FROM: u64 = MIB;
pub(crate) const NODE: NodeId = NodeId([1; 32]);
/// The byte that fills a disk before it is a pool.
pub(crate) const BEFORE: u8 = 0x5A;

pub(crate) fn is_wanted() -> bool {
    std::env::var_os("FABRICBIOS_LAB").is_some_and(|value| value == "1")
}

/// A loop device over a file in memory, full of [`BEFORE`].
pub(crate) struct Disk {
    directory: TempDir,
    pub(crate) path: PathBuf,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// A read-only disk.
    pub(crate) fn read_only() -> Self {
        Self::with(&["--read-only"])
    }

    fn with(options: &[&str]) -> Self {
        assert!(is_wanted(), "FABRICBIOS_LAB=1 is not set");
        run("modprobe", &["-a", "loop", "dm-mod"]);
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = directory.path().join("disk");
        fs::write(&file, vec![BEFORE; usize::try_from(DISK_BYTES).unwrap()]).unwrap();
        let file = file.display().to_string();
        let words = [&["--find", "--show"], options, &[&file]].concat();
        let path = PathBuf::from(run("losetup", &words).trim());
        Self { directory, path }
    }

    /// The file under the loop device.
    pub(crate) fn medium(&self) -> File {
        let path = self.directory.path().join("disk");
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.unwrap()
    }

    /// The bytes of an extent, on the medium.
    pub(crate) fn bytes(&self, extent: Extent) -> Vec<u8> {
        read(&self.medium(), DATA_FROM + extent.offset, extent.length)
    }

    pub(crate) fn fill(&self, extent: Extent, byte: u8) {
        let bytes = vec![byte; usize::try_from(extent.length).unwrap()];
        let at = DATA_FROM + extent.offset;
        self.medium().write_all_at(&bytes, at).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        remove_volumes();
        let _freed = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

/// A device-mapper device over a disk; a test can suspend or break it.
pub(crate) struct Layer<'a> {
    name: &'static str,
    disk: &'a Disk,
    pub(crate) path: PathBuf,
}

impl<'a> Layer<'a> {
    pub(crate) fn over(disk: &'a Disk, name: &'static str) -> Self {
        let table = format!("0 {} linear {} 0", DISK_BYTES / 512, disk.path.display());
        dmsetup(&["create", name, "--table", &table]);
        dmsetup(&["mknodes", name]);
        let path = Path::new("/dev/mapper").join(name);
        Self { name, disk, path }
    }

    pub(crate) fn suspend(&self) {
        dmsetup(&["suspend", "--noflush", "--nolockfs", self.name]);
    }

    pub(crate) fn resume(&self) {
        dmsetup(&["resume", self.name]);
    }

    /// Makes every access from this byte on fail.
    pub(crate) fn breaks_at(&self, byte: u64) {
        let (whole, all) = (byte / 512, DISK_BYTES / 512);
        let path = self.disk.path.display();
        let table = format!("0 {whole} linear {path} 0\n{whole} {} error", all - whole);
        let file = self.disk.directory.path().join("table");
        fs::write(&file, table).unwrap();
        self.suspend();
        dmsetup(&["load", self.name, &file.display().to_string()]);
        self.resume();
    }
}

impl Drop for Layer<'_> {
    fn drop(&mut self) {
        let quietly = |words: &[&str]| Command::new("dmsetup").args(words).output();
        let _resumed = quietly(&["resume", self.name]);
        remove_volumes();
        let _removed = quietly(&["remove", "--retry", self.name]);
    }
}

/// Removes the volumes that a test left behind, so that the next test finds none.
fn remove_volumes() {
    let list = Command::new("dmsetup").arg("ls").output();
    let list = list.map(|output| output.stdout).unwrap_or_default();
    for line in String::from_utf8_lossy(&list).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.starts_with("fabricbios-") {
            let words = ["remove", "--force", "--retry", name];
            let _removed = Command::new("dmsetup").args(words).output();
        }
    }
}

pub(crate) fn dmsetup(words: &[&str]) -> String {
    run("dmsetup", &[&["--noudevsync"], words].concat())
}

pub(crate) fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// One supervisor for all tests of this process.
pub(crate) fn supervisor() -> Supervisor {
    static STARTED: OnceLock<Supervisor> = OnceLock::new();
    let start = || {
        let program = Path::new(env!("CARGO_BIN_EXE_fabricbios-pool-calls"));
        let program = Program::copy_of(program).unwrap();
        Supervisor::start(&program, "supervisor", tempfile::tempfile().unwrap()).unwrap()
    };
    STARTED.get_or_init(start).clone()
}

pub(crate) fn config(path: &Path) -> PoolConfig {
    PoolConfig {
        path: path.to_owned(),
        node_id: NODE,
        force: false,
        may_begin: true,
        supervisor: supervisor(),
    }
}

pub(crate) fn open(path: &Path) -> Pool {
    Pool::open(config(path)).unwrap()
}

pub(crate) fn refusal(config: PoolConfig) -> String {
    Pool::open(config).unwrap_err().to_string()
}

pub(crate) fn lease(number: u128) -> LeaseId {
    LeaseId(number)
}

/// An extent in whole MiB.
pub(crate) fn extent(offset: u64, length: u64) -> Extent {
    Extent {
        offset: offset * MIB,
        length: length * MIB,
    }
}

pub(crate) fn destroy(pool: &Pool, number: u128, at: Extent) -> Result<Proof, StepError> {
    pool.destroy(lease(number), Some(at), &|| ())
}

/// The blocks of a lease, as its holder accesses them.
pub(crate) struct Tenant {
    file: File,
    bytes: u64,
}

impl Tenant {
    pub(crate) fn of(pool: &Pool, number: u128, at: Extent) -> Self {
        let has_one = pool.leases().unwrap().contains(&lease(number));
        let volume = match has_one {
            true => pool.reopen(lease(number), at),
            false => pool.create(lease(number), at),
        };
        let volume = volume.unwrap();
        assert_eq!(volume.bytes, at.length);
        let file = OpenOptions::new().read(true).write(true).open(&volume.path);
        Self {
            file: file.unwrap(),
            bytes: volume.bytes,
        }
    }

    pub(crate) fn fill(&self, byte: u8) {
        let bytes = vec![byte; usize::try_from(self.bytes).unwrap()];
        self.file.write_all_at(&bytes, 0).unwrap();
        self.file.sync_all().unwrap();
    }

    pub(crate) fn try_to_write(&self) -> io::Result<()> {
        self.file.write_all_at(&[1; 4096], 0)
    }

    pub(crate) fn is_all(&self, byte: u8) -> bool {
        all(&read(&self.file, 0, self.bytes), byte)
    }
}

pub(crate) fn all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&one| one == byte)
}

fn read(file: &File, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}
