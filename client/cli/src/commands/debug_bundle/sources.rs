//! Where the parts of a bundle come from. No source can hold up the others for long, or fill the memory.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write as _},
    net::{TcpStream, ToSocketAddrs},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{super::Access, secrets};
use crate::time_text;

/// Most lines of the log.
pub(super) const LOG_LINES: &str = "5000";

/// How long a program or a server may take.
const PATIENCE: Duration = Duration::from_secs(30);

const NOT_IN_TIME: &str = "not done within 30 s";

/// Most bytes of a file, and of metrics.
const BYTES_MAX: u64 = 16 << 20;

/// Most bytes of the watchdog's log.
const WATCHDOG_BYTES_MAX: i64 = 256 << 10;

/// Files that say what the kernel has and allows.
const FILES: [&str; 9] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/filesystems",
    "/proc/self/mountinfo",
    "/proc/sys/vm/nr_hugepages",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/devices/system/cpu/online",
];

/// Directories whose entries say it.
const DIRECTORIES: [&str; 6] = [
    "/sys/bus/pci/devices",
    "/sys/class/infiniband",
    "/sys/class/net",
    "/sys/class/nvme",
    "/sys/kernel/config",
    "/sys/kernel/iommu_groups",
];

/// The daemon's program: beside this one, or in PATH.
pub(super) fn daemon() -> PathBuf {
    const NAME: &str = "fabricbiosd";
    let beside = env::current_exe().map(|own| own.with_file_name(NAME));
    beside
        .ok()
        .filter(|it| it.is_file())
        .unwrap_or_else(|| NAME.into())
}

/// The answer of `fabricctl --json` with these words, without secrets.
pub(super) fn ask(access: &Access, identity: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let patience = access.patience.as_secs().to_string();
    let flags = [
        "--json",
        "--node",
        &access.node,
        "--patience-secs",
        &patience,
        "--identity",
    ];
    let mut all: Vec<&OsStr> = flags.map(AsRef::as_ref).into();
    all.push(identity.as_os_str());
    let node_id = access.node_id.map(|id| id.to_string());
    if let Some(id) = &node_id {
        all.extend(["--node-id", id].map(OsStr::new));
    }
    all.extend(words.iter().map(OsStr::new));
    secrets::strip(&run(&own, &all)?)
}

/// The output of a program, also of one that fails with some. `Err`: it has none, and why.
pub(super) fn run(program: &Path, words: &[&OsStr]) -> Result<Vec<u8>, String> {
    let name = program.file_name();
    let name = name.unwrap_or_default().display().to_string();
    let child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("{name}: {error}"))?;
    let pid = child.id().try_into().map(Pid::from_raw);
    let Some((stdout, done)) = in_time(move || {
        // Who writes more finds the pipe closed.
        let stdout = child.stdout.take().map_or(Ok(Vec::new()), bounded);
        (stdout, child.wait_with_output())
    }) else {
        pid.map(|pid| kill(pid, Signal::SIGKILL)).ok();
        return Err(format!("{name}: {NOT_IN_TIME}"));
    };
    let stdout = stdout.map_err(|error| format!("{name}: {error}"))?;
    let Output { status, stderr, .. } = done.map_err(|error| format!("{name}: {error}"))?;
    match stdout.is_empty() {
        false => Ok(stdout),
        true => Err(format!(
            "{name}: {status}: {}",
            String::from_utf8_lossy(&stderr).trim()
        )),
    }
}

/// The result of this work, unless it takes longer than [`PATIENCE`]. Its thread ends with the process.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()).ok());
    told.recv_timeout(PATIENCE).ok()
}

/// What the kernel has: files and names of devices. What is not there is a line.
pub(super) fn kernel() -> Vec<u8> {
    let mut text = String::new();
    for path in FILES.map(Path::new) {
        let found = file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let found = found.unwrap_or_else(|why| format!("({why})\n"));
        // Writing to a string does not fail.
        writeln!(text, "== {}\n{found}", path.display()).ok();
    }
    for path in DIRECTORIES.map(Path::new) {
        let names = names(path).map(|names| names.join("\n"));
        let names = names.unwrap_or_else(|why| format!("({why})"));
        writeln!(text, "== {}/\n{names}\n", path.display()).ok();
    }
    text.into_bytes()
}

/// Names, modes, sizes and times of the files of a directory.
pub(super) fn listing(directory: &Path) -> Result<Vec<u8>, String> {
    let mut text = format!("{}\n", directory.display());
    for name in names(directory)? {
        let told = match fs::symlink_metadata(directory.join(&name)) {
            Ok(found) => {
                let changed_ms = found.mtime().max(0).unsigned_abs().saturating_mul(1_000);
                let (mode, owner, bytes) = (found.mode(), found.uid(), found.len());
                format!(
                    "{mode:06o} uid {owner} {bytes:>12} bytes {} {name}",
                    time_text::utc(changed_ms)
                )
            }
            Err(error) => format!("{name}: {error}"),
        };
        writeln!(text, "{told}").ok();
    }
    Ok(text.into_bytes())
}

fn names(directory: &Path) -> Result<Vec<String>, String> {
    let why = |error| format!("{}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(why)?;
    let names = entries
        .flatten()
        .map(|it| it.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// A file of bounded size.
pub(super) fn file(path: &Path) -> Result<Vec<u8>, String> {
    let why = |error| format!("{}: {error}", path.display());
    bounded(File::open(path).map_err(why)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// The end of a file that may be long, in a directory of the daemon's user: a link or a FIFO there is not what the daemon
/// wrote, and must neither lead root elsewhere nor make it wait.
pub(super) fn end_of(path: &Path) -> Result<Vec<u8>, String> {
    let why = |error| format!("{}: {error}", path.display());
    let mut open = OpenOptions::new();
    let open = open
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let mut file = open.open(path).map_err(why)?;
    let (found, directory) = (file.metadata(), path.parent().map(fs::metadata));
    let (found, directory) = (found.map_err(why)?, directory.transpose().map_err(why)?);
    if !found.is_file() || directory.is_none_or(|it| it.uid() != found.uid()) {
        return Err(format!(
            "{}: it is no file of the owner of its directory",
            path.display()
        ));
    }
    // A shorter file is read from its beginning.
    file.seek(SeekFrom::End(-WATCHDOG_BYTES_MAX)).ok();
    bounded(file).map_err(|error| format!("{}: {error}", path.display()))
}

fn bounded(from: impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = from.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    let count = read.map_err(|error| error.to_string())?;
    match count as u64 <= BYTES_MAX {
        true => Ok(bytes),
        false => Err(format!("it is longer than {BYTES_MAX} bytes")),
    }
}

/// `GET /metrics` in plain HTTP/1.0.
pub(super) fn metrics(address: Option<&str>) -> Result<Vec<u8>, String> {
    let address = address.ok_or("neither --metrics nor metrics-listen says where they are")?;
    let to = address.to_owned();
    let answer = in_time(move || get(&to)).unwrap_or_else(|| Err(NOT_IN_TIME.to_owned()));
    let answer = answer.map_err(|error| format!("{address}: {error}"))?;
    let mark = b"\r\n\r\n";
    let end = answer.windows(mark.len()).position(|it| it == mark);
    let end = end.ok_or_else(|| format!("{address}: it does not answer in HTTP"))?;
    let (head, body) = answer.split_at(end + mark.len());
    let head = String::from_utf8_lossy(head);
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_vec()),
        _ => Err(format!("{address}: {status}")),
    }
}

fn get(address: &str) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut found = address.to_socket_addrs().map_err(text)?;
    let found = found.next().ok_or("no address")?;
    let mut stream = TcpStream::connect_timeout(&found, PATIENCE).map_err(text)?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(text)?;
    bounded(stream)
}
