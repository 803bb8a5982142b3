//! The program with `--etcd embedded-dev`.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Instant, SystemTime},
};

use fabricbios_fabric::FabricDirectory;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::world::PATIENCE;

struct Program {
    child: Child,
    etcd: u32,
    temporary: PathBuf,
    _place: tempfile::TempDir,
}

fn command(place: &Path) -> Command {
    let fabric = place.join("fabric");
    FabricDirectory::init(&fabric, SystemTime::now()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    command
        .arg("--identity")
        .arg(fabric.join("scheduler.identity"));
    command.args(["--listen=127.0.0.1:0", "--etcd=embedded-dev"]);
    command.stdout(Stdio::piped());
    command
}

impl Program {
    fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let temporary = place.path().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let mut command = command(place.path());
        let mut child = command.env("TMPDIR", &temporary).spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("READY "), "{line}");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let etcd = fs::read_to_string(children).unwrap();
        let etcd = etcd.trim().parse().unwrap();
        Self {
            child,
            etcd,
            temporary,
            _place: place,
        }
    }

    fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.child.wait().unwrap();
    }

    fn is_running(&self) -> bool {
        // A process that has ended and that nobody has waited for has no program any more.
        fs::read_link(format!("/proc/{}/exe", self.etcd)).is_ok()
    }

    fn directories(&self) -> usize {
        fs::read_dir(&self.temporary).unwrap().count()
    }
}

#[test]
fn an_embedded_etcd_ends_with_its_scheduler_and_takes_its_data_with_it() {
    for is_stopped in [false, true] {
        let mut program = Program::start();
        assert!(program.is_running());
        let [directory] = &{ fs::read_dir(&program.temporary).unwrap() }
            .map(|it| it.unwrap())
            .collect::<Vec<_>>()[..]
        else {
            panic!("not one directory");
        };
        let mode = std::os::unix::fs::MetadataExt::mode(&directory.metadata().unwrap());
        assert_eq!(mode & 0o7777, 0o700);
        if is_stopped {
            kill(Pid::from_raw(program.etcd.cast_signed()), Signal::SIGSTOP).unwrap();
        }
        program.signal(Signal::SIGTERM);
        assert!(!program.is_running());
        assert_eq!(program.directories(), 0);
    }
}

#[test]
fn an_embedded_etcd_ends_with_a_scheduler_that_is_killed() {
    let mut program = Program::start();
    program.signal(Signal::SIGKILL);
    let begin = Instant::now();
    while program.is_running() {
        assert!(begin.elapsed() < PATIENCE, "etcd goes on");
        std::thread::yield_now();
    }
}

#[test]
fn without_the_program_etcd_the_error_names_its_package() {
    let place = tempfile::tempdir().unwrap();
    let told = command(place.path())
        .env("PATH", place.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(
        !told.status.success() && text.contains("apt install etcd-server"),
        "{text}"
    );
}

#[test]
fn an_identity_that_others_can_read_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let identity = place.path().join("etcd.identity");
    fs::write(&identity, "").unwrap();
    let run = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
        let scheduler = place.path().join("fabric/scheduler.identity");
        command.arg("--identity").arg(scheduler);
        command.args(["--listen=127.0.0.1:0", "--etcd", url]);
        let told = command.arg("--etcd-identity").arg(&identity).output();
        let told = told.unwrap();
        assert!(!told.status.success());
        String::from_utf8(told.stderr).unwrap()
    };
    FabricDirectory::init(&place.path().join("fabric"), SystemTime::now()).unwrap();
    let text = run("https://127.0.0.1:1");
    assert!(text.contains("others can read it"), "{text}");
    fs::set_permissions(
        &identity,
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let text = run("https://127.0.0.1:1");
    assert!(text.contains("0 certificates"), "{text}");
}
