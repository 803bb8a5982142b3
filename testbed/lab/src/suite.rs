//! The suites that run in guests: their list, their needs, and the meaning of their exit codes.

use crate::guest::Finished;
use crate::machine::Processors;
use crate::report::Outcome;
use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit code of a suite that cannot run because something is missing; its last line names it.
const SKIPPED_CODE: i32 = 77;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1800);
const HEADER: &str = "# lab:";
const COVERS: &str = "# covers:";

/// How many machines a suite wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machines {
    /// One, with the RDMA device `rxe0` on a veth pair.
    One,
    /// Two, with `rxe0` on the link between them. The suite runs in both, with the argument `node`
    /// in one and `client` in the other.
    Two,
}

/// The requests in the header of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants {
    /// The machines.
    pub machines: Machines,
    /// The timeout of each boot.
    pub timeout: Duration,
    /// Bytes of a disk, `/dev/vda`, that keeps its contents from boot to boot.
    pub disk_bytes: Option<u64>,
    /// How often the suite is run, each time in a guest that has just booted.
    pub boots: u32,
    /// The same in full length.
    pub full_boots: u32,
    /// The suite needs a guest of its own: it leaves things behind, on purpose or by a fault of the kernel.
    pub alone: bool,
    /// systemd is process 1 of the guest.
    pub systemd: bool,
    /// The guest has a network card with virtual functions, behind an IOMMU.
    pub igb: bool,
    /// Nothing runs beside the suite, and its guest has two processors on any host: a client continues on one of them
    /// while the node cuts its access on the other.
    pub quiet: bool,
    /// The suite runs clients from the Python package index. Where they cannot be fetched, it is skipped.
    pub clients: bool,
    /// The suite runs the Rust programs in `examples/`, which are built before it.
    pub examples: bool,
    /// The suite runs a scheduler with etcd: the one is built and the other installed before it.
    pub etcd: bool,
    /// Runs of everything leave the suite out, unless they are in full length.
    pub full: bool,
    /// The processors of its guests. Without them a guest has one or two, as its host has.
    pub processors: Option<Processors>,
}

/// One program that runs in the lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suite {
    /// Its file name without the extension.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Its header.
    pub wants: Wants,
    /// The crates (without `fabricbios-`) and the folders that this suite tests. A change to a crate or folder that
    /// suites name runs only the suites that name it.
    pub covers: Vec<String>,
}

/// The Python programs in `directory` whose name starts with `prefix`, by name. A program that is not
/// executable is an error: otherwise it would be left out silently.
pub fn discover(directory: &Path, prefix: &str) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    if !directory.is_dir() {
        return Ok(suites);
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_python = path.extension().is_some_and(|extension| extension == "py");
        if is_python && name.starts_with(prefix) {
            suites.push(Suite::read(&path, name)?);
        }
    }
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suites)
}

impl Suite {
    fn read(path: &Path, name: String) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        if path.metadata()?.permissions().mode() & 0o111 == 0 {
            bail!("{shown} is not executable: chmod +x, or give it another name");
        }
        let wants = header(&text).with_context(|| format!("header of {shown}"))?;
        let covers = line(&text, COVERS).map(|it| it.split_whitespace().map(str::to_owned));
        Ok(Self {
            name,
            path: path.to_owned(),
            wants,
            covers: covers.into_iter().flatten().collect(),
        })
    }
}

/// The text after `start` in a line near the top.
fn line<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    let mut top = text.lines().take(20);
    top.find_map(|line| line.strip_prefix(start))
}

/// Reads `# lab: one-vm`, `# lab: two-vm timeout=1200` `# lab: one-vm disk=256M boots=2` or
/// `# lab: one-vm topology=2x2x2 numa=2`.
fn header(text: &str) -> Result<Wants> {
    let line =
        line(text, HEADER).context("no line `# lab: one-vm` or `# lab: two-vm` near the top")?;
    let mut words = line.split_whitespace();
    let machines = match words.next() {
        Some("one-vm") => Machines::One,
        Some("two-vm") => Machines::Two,
        other => bail!("`{}`: one-vm or two-vm expected", other.unwrap_or_default()),
    };
    let mut wants = Wants {
        machines,
        timeout: TIMEOUT_DEFAULT,
        disk_bytes: None,
        boots: 1,
        full_boots: 1,
        alone: false,
        igb: false,
        systemd: false,
        quiet: false,
        clients: false,
        examples: false,
        etcd: false,
        full: false,
        processors: None,
    };
    words.try_for_each(|word| wants.read(word))?;
    if machines == Machines::Two
        && (wants.full_boots > 1 || wants.disk_bytes.is_some() || wants.igb)
    {
        bail!("disk=, boots= and igb are for one-vm");
    }
    Ok(wants)
}

impl Wants {
    /// Whether the suite can run in a shared guest.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.machines == Machines::One
            && self.disk_bytes.is_none()
            && self.full_boots == 1
            && !self.alone
            && !self.igb
            && !self.systemd
    }

    fn read(&mut self, word: &str) -> Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = |text: &str| text.parse().with_context(|| format!("`{word}`"));
        match name {
            "timeout" => self.timeout = Duration::from_secs(number(value)?),
            "disk" => {
                let mebibytes = value.strip_suffix('M').context("disk=NUMBERM expected")?;
                self.disk_bytes = Some(number(mebibytes)? << 20);
            }
            "alone" => self.alone = true,
            "igb" => self.igb = true,
            "systemd" => self.systemd = true,
            "quiet" => self.quiet = true,
            "clients" => self.clients = true,
            "examples" => self.examples = true,
            "etcd" => self.etcd = true,
            "full" => self.full = true,
            "smp" => {
                let cores = u8::try_from(number(value)?)?.max(1);
                self.processors = Some(Processors::cores(cores.into()));
            }
            "topology" => self.processors = Some(value.parse()?),
            "numa" => {
                let processors = self
                    .processors
                    .context("numa= comes after smp= or topology=")?;
                self.processors = Some(processors.in_nodes(u32::try_from(number(value)?)?)?);
            }
            "boots" => {
                let (short, full) = value.split_once(',').unwrap_or((value, value));
                self.boots = u32::try_from(number(short)?)?.max(1);
                self.full_boots = u32::try_from(number(full)?)?.max(self.boots);
            }
            _ => bail!(
                "`{word}`: timeout=SECONDS, disk=NUMBERM, boots=NUMBER[,NUMBER], smp=NUMBER, topology=SxCxT, numa=NUMBER, \
                 alone, igb, systemd, quiet, clients, examples, etcd or full expected"
            ),
        }
        Ok(())
    }
}

/// The meaning of a suite's exit code.
#[must_use]
pub fn outcome(ending: &Finished) -> Outcome {
    match ending.code {
        0 => Outcome::Passed,
        SKIPPED_CODE => Outcome::Skipped(last_line(&ending.output)),
        code => Outcome::Failed(format!("exit code {code}: {}", last_line(&ending.output))),
    }
}

/// The meaning of a Rust test binary's exit code. A binary that ran no test has not passed.
#[must_use]
pub fn rust_outcome(ending: &Finished) -> Outcome {
    let ran_nothing = |line: &str| line.starts_with("test result: ok. 0 passed");
    if ending.code == 0 && ending.output.lines().any(ran_nothing) {
        return Outcome::Failed("the test binary ran no test".to_owned());
    }
    outcome(ending)
}

fn last_line(output: &str) -> String {
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.unwrap_or("without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(code: i32, output: &str) -> Finished {
        Finished {
            code,
            output: output.to_owned(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn the_header_says_what_a_suite_wants() {
        let plain = Wants {
            machines: Machines::One,
            timeout: TIMEOUT_DEFAULT,
            disk_bytes: None,
            boots: 1,
            full_boots: 1,
            alone: false,
            igb: false,
            systemd: false,
            quiet: false,
            clients: false,
            examples: false,
            etcd: false,
            full: false,
            processors: None,
        };
        assert_eq!(header("# lab: one-vm\n").unwrap(), plain);
        assert!(plain.shares());
        let text = "#!/usr/bin/python3\n# lab: two-vm timeout=60\n";
        let two = Wants {
            machines: Machines::Two,
            timeout: Duration::from_secs(60),
            ..plain.clone()
        };
        assert_eq!(header(text).unwrap(), two);
        let alone = header("# lab: one-vm alone\n").unwrap();
        assert!(alone.alone && !alone.shares());
        let igb = header("# lab: one-vm igb\n").unwrap();
        assert!(igb.igb && !igb.shares());
        let systemd = header("# lab: one-vm systemd\n").unwrap();
        assert!(systemd.systemd && !systemd.shares());
        let quiet = header("# lab: one-vm quiet\n").unwrap();
        assert!(quiet.quiet && quiet.shares());
        let clients = header("# lab: one-vm clients\n").unwrap();
        assert!(clients.clients && clients.shares());
        let examples = header("# lab: one-vm examples\n").unwrap();
        assert!(examples.examples && examples.shares());
        assert!(header("# lab: two-vm etcd\n").unwrap().etcd);
        let four = header("# lab: one-vm smp=4\n").unwrap();
        assert_eq!(four.processors, Some(Processors::cores(4)));
        let nodes = header("# lab: one-vm topology=2x2x2 numa=2\n").unwrap();
        assert!(nodes.shares());
        let expected = Processors {
            sockets: 2,
            cores: 2,
            threads: 2,
            nodes: 2,
        };
        assert_eq!(nodes.processors, Some(expected));
        let again = Wants {
            disk_bytes: Some(256 << 20),
            boots: 2,
            full_boots: 2,
            ..plain
        };
        assert_eq!(header("# lab: one-vm boots=2 disk=256M\n").unwrap(), again);
        let once_more = header("# lab: one-vm boots=2,3 disk=256M\n").unwrap();
        assert_eq!((once_more.boots, once_more.full_boots), (2, 3));
        for wrong in [
            "",
            "# lab:\n",
            "# lab: three-vm\n",
            "# lab: one-vm fast\n",
            "# lab: one-vm timeout=x\n",
            "# lab: one-vm disk=256\n",
            "# lab: one-vm boots=\n",
            "# lab: two-vm boots=2\n",
            "# lab: one-vm numa=2\n",
            "# lab: one-vm topology=2x2\n",
            "# lab: one-vm smp=4 numa=3\n",
            "# lab: two-vm igb\n",
        ] {
            assert!(header(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn a_suite_that_would_be_left_out_silently_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("suite_x.py");
        std::fs::write(&path, "# lab: one-vm\n").unwrap();
        std::fs::write(place.path().join("helper.py"), "").unwrap();
        let error = discover(place.path(), "suite_").unwrap_err().to_string();
        assert!(error.contains("not executable"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let names: Vec<String> = discover(place.path(), "suite_")
            .unwrap()
            .into_iter()
            .map(|suite| suite.name)
            .collect();
        assert_eq!(names, ["suite_x"]);
    }

    #[test]
    fn a_skip_names_what_was_missing() {
        let skip = outcome(&finished(77, "starting\nskipped: missing rxe0\n\n"));
        assert_eq!(skip, Outcome::Skipped("skipped: missing rxe0".to_owned()));
        assert!(matches!(outcome(&finished(1, "")), Outcome::Failed(_)));
        assert_eq!(outcome(&finished(0, "")), Outcome::Passed);
    }

    #[test]
    fn a_rust_binary_without_tests_has_not_passed() {
        let empty = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
        assert!(matches!(
            rust_outcome(&finished(0, empty)),
            Outcome::Failed(_)
        ));
        let one = "running 1 test\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(rust_outcome(&finished(0, one)), Outcome::Passed);
    }
}
