//! The job of a guest: a command, its preparations, and its time limit.

use crate::guest::Echo;
use crate::initramfs::Archive;
use crate::kernel::Kernel;
use crate::machine::VmSpec;
use crate::requirements::directory_of;
use crate::shell::{quote, quote_all};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

const INITRAMFS_SCRIPT: &str = include_str!("../boot/initramfs.sh");
const INIT_SCRIPT: &str = include_str!("../boot/init.sh");
const BUSYBOX: &str = "/bin/busybox";
/// The busybox commands that boot/initramfs.sh calls.
const APPLETS: [&str; 9] = [
    "sh",
    "mount",
    "mkdir",
    "insmod",
    "grep",
    "cp",
    "sleep",
    "switch_root",
    "cat",
];
/// The guest uses Debian's programs, independent of the host's own search path.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Something that a guest sets up before its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prelude {
    /// The RDMA device `rxe0` on a veth pair, 10.77.0.1/24.
    SoftRoce,
    /// This machine's end of the link of two machines, as `eth0`.
    Link,
    /// The RDMA device `rxe0` on that link.
    LinkRoce,
    /// The driver of the guest's disks.
    Disk,
    /// The drivers and names of what [`Job::add_igb`] adds.
    Igb,
}

impl Prelude {
    fn script(self) -> &'static str {
        match self {
            Self::SoftRoce => include_str!("../boot/soft_roce.sh"),
            Self::Link => include_str!("../boot/link.sh"),
            Self::LinkRoce => include_str!("../boot/link_roce.sh"),
            Self::Disk => "modprobe virtio_blk\n",
            Self::Igb => include_str!("../boot/igb.sh"),
        }
    }
}

/// A command for one guest.
#[derive(Debug, Clone)]
pub struct Job {
    /// The name of the run in messages and in the names of its logs.
    pub name: String,
    /// The command and its arguments, run as root.
    pub command: Vec<String>,
    /// Preparations before the command, in this order.
    pub preludes: Vec<Prelude>,
    /// Additional environment of the command.
    pub environment: Vec<(String, String)>,
    /// systemd is process 1 of the guest, and the command runs in a service.
    pub systemd: bool,
    /// Where the command's output is shown.
    pub echo: Echo,
    /// The time after which QEMU is killed; `None` means never.
    pub timeout: Option<Duration>,
    /// The machine.
    pub vm: VmSpec,
}

impl Job {
    /// A command with the usual machine, shown plainly, with five minutes.
    #[must_use]
    pub fn new(name: &str, command: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            preludes: Vec::new(),
            environment: Vec::new(),
            systemd: false,
            echo: Echo::Plain,
            timeout: Some(Duration::from_secs(300)),
            vm: VmSpec::default(),
        }
    }

    /// Gives the guest a network card with virtual functions, `pf0`, and a plain interface on the same wire, `wire0`.
    pub fn add_igb(&mut self) {
        self.vm.add_igb();
        self.preludes.push(Prelude::Igb);
    }

    /// The first file system of this job's guest.
    pub(crate) fn initramfs(&self, place: &Place<'_>) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for directory in ["bin", "lab", "modules"] {
            archive.directory(directory);
        }
        add_first_programs(&mut archive)?;
        for (index, module) in place.kernel.boot_modules()?.iter().enumerate() {
            let content = std::fs::read(module)
                .with_context(|| format!("cannot read {}", module.display()))?;
            archive.file(&format!("modules/{index:02}.ko"), &content);
        }
        archive.file("lab/init.sh", INIT_SCRIPT.as_bytes());
        archive.file("lab/environment", self.environment_script(place).as_bytes());
        archive.file("lab/command", self.command_script().as_bytes());
        Ok(archive.finish())
    }

    fn environment_script(&self, place: &Place<'_>) -> String {
        let terminal = matches!(self.echo, Echo::Terminal);
        let (rows, columns) = if terminal { terminal_size() } else { (24, 80) };
        let name = if terminal {
            std::env::var("TERM").ok()
        } else {
            None
        };
        let mut own = vec![
            ("PATH", search_path(directory_of("cargo").as_deref())),
            ("HOME", "/root".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("TERM", name.unwrap_or_else(|| "dumb".to_owned())),
            ("LAB_NONCE", place.nonce.to_owned()),
            ("LAB_MODULES", place.kernel.modules.display().to_string()),
            ("LAB_DIRECTORY", place.directory.display().to_string()),
            ("LAB_TERMINAL", u8::from(terminal).to_string()),
            ("LAB_ROWS", rows.to_string()),
            ("LAB_COLUMNS", columns.to_string()),
            ("LAB_SYSTEMD", u8::from(self.systemd).to_string()),
        ];
        own.extend(rust_homes());
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let added = self
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        // A pair sets the role; a single guest is the node.
        let lines = [("LAB_ROLE", "node")].into_iter().chain(own).chain(added);
        lines.map(export).collect()
    }

    /// The command as a script for a running guest.
    pub(crate) fn session_script(&self) -> String {
        let added = self.environment.iter();
        let added = added.map(|(name, value)| export((name, value)));
        added.collect::<String>() + &format!("exec {}\n", quote_all(&self.command))
    }

    fn command_script(&self) -> String {
        let mut script = String::from(
            "set -E\ntrap 'echo \"lab: cannot set up the guest: $BASH_COMMAND\" >&2; exit 125' ERR\n",
        );
        for prelude in &self.preludes {
            script.push_str(prelude.script());
        }
        script.push_str("trap - ERR\nexec ");
        script.push_str(&quote_all(&self.command));
        script.push('\n');
        script
    }
}

/// The directory of the host's cargo comes last; it has the programs of `cargo install`.
fn search_path(cargo: Option<&Path>) -> String {
    match cargo {
        Some(place) if !PATH.split(':').any(|known| Path::new(known) == place) => {
            format!("{PATH}:{}", place.display())
        }
        _ => PATH.to_owned(),
    }
}

/// The guest's user is root, so without this rustup would look for its toolchains in root's home.
fn rust_homes() -> impl Iterator<Item = (&'static str, String)> {
    let homes = ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
    homes
        .into_iter()
        .filter_map(|name| Some((name, std::env::var(name).ok()?)))
}

/// The programs of the first file system: busybox under the names that `init` calls, and `init`.
pub(crate) fn add_first_programs(archive: &mut Archive) -> Result<()> {
    let busybox = std::fs::read(BUSYBOX)
        .with_context(|| format!("cannot read {BUSYBOX}: is busybox-static installed?"))?;
    archive.file("bin/busybox", &busybox);
    for applet in APPLETS {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    archive.file("init", INITRAMFS_SCRIPT.as_bytes());
    Ok(())
}

/// Where a job runs.
pub(crate) struct Place<'a> {
    pub(crate) kernel: &'a Kernel,
    /// The command's working directory.
    pub(crate) directory: &'a Path,
    pub(crate) nonce: &'a str,
}

fn terminal_size() -> (u16, u16) {
    let size = std::process::Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .output();
    let text = size.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let parsed = text
        .trim()
        .split_once(' ')
        .and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)));
    parsed.unwrap_or((24, 80))
}

fn export((name, value): (&str, &str)) -> String {
    format!("export {name}={}\n", quote(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prelude_that_fails_is_told_apart_from_the_command() {
        let mut job = Job::new("t", &["true"]);
        job.preludes = vec![Prelude::LinkRoce];
        // These programs do not exist here, so the first step of the prelude fails as it would in a guest.
        let run = std::process::Command::new("/bin/bash")
            .args(["-c", &job.command_script()])
            .env("PATH", "/nonexistent")
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(125));
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(
            said.contains("lab: cannot set up the guest: modprobe rdma_rxe"),
            "{said}"
        );
    }

    #[test]
    fn what_cargo_installed_is_found_after_debians_programs() {
        let path = search_path(Some(Path::new("/home/ann/.cargo/bin")));
        assert_eq!(path, format!("{PATH}:/home/ann/.cargo/bin"));
        assert_eq!(search_path(Some(Path::new("/usr/bin"))), PATH);
        assert_eq!(search_path(None), PATH);
    }

    #[test]
    fn the_command_arrives_word_for_word_and_its_code_comes_back() {
        let job = Job::new(
            "t",
            &["sh", "-c", "printf '%s' \"$1\"; exit 3", "x", "it's $HOME"],
        );
        let run = std::process::Command::new("/bin/bash")
            .args(["-c", &job.command_script()])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(3));
        assert_eq!(String::from_utf8_lossy(&run.stdout), "it's $HOME");
    }
}
