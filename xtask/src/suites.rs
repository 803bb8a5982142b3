//! The lab suites: programs under testbed/guest, and Rust tests that need the lab kernel.

use crate::cargo::{self, Profile, Scope};
use crate::lab::{BootArguments, say};
use anyhow::{Context, Result, anyhow};
use fabricbios_testbed::requirements::Need;
use fabricbios_testbed::suite::{self, Machines, Suite};
use fabricbios_testbed::{Disk, Finished, Job, Lab, Layout, Outcome, Prelude, Session};
use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::time::Duration;

/// Where the programs are that run in guests.
pub(crate) const GUEST_DIRECTORY: &str = "testbed/guest";
/// Rust tests that need the lab: by package, the files of a directory with a prefix.
const RUST_TESTS: [RustTests; 3] = [
    RustTests {
        package: "fabricbios-rdma",
        directory: "premium/rdma/tests",
        prefix: "rxe",
    },
    RustTests {
        package: "fabricbios-nvmet",
        directory: "premium/nvmet/tests",
        prefix: "nvmet",
    },
    RustTests {
        package: "fabricbios-pool",
        directory: "pool/tests",
        prefix: "pool_device",
    },
];
const RUST_TIMEOUT: Duration = Duration::from_secs(1800);

struct RustTests {
    package: &'static str,
    directory: &'static str,
    prefix: &'static str,
}

/// One file of Rust tests.
struct RustTest {
    name: String,
    of: &'static RustTests,
}

/// Every suite of this checkout.
pub(crate) struct Suites(Vec<Kind>);

enum Kind {
    Program(Suite),
    Rust(RustTest),
}

impl Kind {
    fn shares(&self) -> bool {
        match self {
            Self::Program(suite) => suite.wants.shares(),
            Self::Rust(_) => true,
        }
    }
}

impl Suites {
    /// Those that share a guest come first, so that it is booted once.
    pub(crate) fn discover(layout: &Layout) -> Result<Self> {
        let programs = suite::discover(&layout.repository().join(GUEST_DIRECTORY), "suite_")?;
        let programs = programs.into_iter().map(Kind::Program);
        let rust_tests = rust_tests(layout)?.into_iter().map(Kind::Rust);
        let mut all: Vec<Kind> = programs.chain(rust_tests).collect();
        all.sort_by_key(|kind| !kind.shares());
        Ok(Self(all))
    }

    /// The name of each, and the machines that it runs in.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.0.iter().map(|kind| match kind {
            Kind::Program(suite) if suite.wants.machines == Machines::Two => (
                suite.name.as_str(),
                "in two guests, soft-RoCE on the link between them",
            ),
            Kind::Program(suite) if !kind.shares() => {
                (suite.name.as_str(), "in a guest of its own, with soft-RoCE")
            }
            Kind::Program(suite) => (suite.name.as_str(), "in a shared guest with soft-RoCE"),
            Kind::Rust(test) => (test.name.as_str(), "in a shared guest with soft-RoCE"),
        })
    }

    pub(crate) fn on<'a>(
        &'a self,
        layout: &'a Layout,
        boot: &'a BootArguments,
        scope: Scope,
    ) -> Runner<'a> {
        Runner {
            suites: self,
            layout,
            boot,
            scope,
            lab: OnceCell::new(),
            session: RefCell::new(None),
        }
    }
}

fn rust_tests(layout: &Layout) -> Result<Vec<RustTest>> {
    let mut found = Vec::new();
    for of in &RUST_TESTS {
        let directory = layout.repository().join(of.directory);
        if directory.is_dir() {
            let names = of.names(&directory)?.into_iter();
            found.extend(names.map(|name| RustTest { name, of }));
        }
    }
    Ok(found)
}

impl RustTests {
    fn names(&self, directory: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            if is_rust && name.starts_with(self.prefix) {
                names.push(name.into_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Runs suites. The lab and the programs under test are made ready for the first one only.
pub(crate) struct Runner<'a> {
    suites: &'a Suites,
    layout: &'a Layout,
    boot: &'a BootArguments,
    scope: Scope,
    lab: OnceCell<std::result::Result<Lab, String>>,
    /// The shared guest, while all went well in it.
    session: RefCell<Option<Session>>,
}

impl Runner<'_> {
    /// The suite at this place in [`Suites::all`]; in full length, or in its short form.
    pub(crate) fn run(&self, index: usize, full: bool) -> Result<Outcome> {
        let lab = self.lab()?;
        let kind = &self.suites.0[index];
        let mut job = match kind {
            Kind::Program(suite) => program_job(suite, self.layout, Profile::Debug),
            Kind::Rust(test) => self.rust_job(test)?,
        };
        if full {
            let full = ("FABRICBIOS_FULL".to_owned(), "1".to_owned());
            job.environment.push(full);
        }
        match kind {
            Kind::Program(suite) if !kind.shares() => {
                self.end()?;
                run_alone(lab, job, suite, self.layout)
            }
            Kind::Program(_) => self.run_shared(lab, &job, suite::outcome),
            Kind::Rust(_) => self.run_shared(lab, &job, suite::rust_outcome),
        }
    }

    fn run_shared(&self, lab: &Lab, job: &Job, judge: fn(&Finished) -> Outcome) -> Result<Outcome> {
        let session = match self.session.take() {
            Some(session) => session,
            None => lab.session()?,
        };
        let (session, turn) = session.run(job)?;
        let mut outcome = judge(&turn.finished);
        if !turn.left.is_empty() && !matches!(outcome, Outcome::Failed(_)) {
            outcome = Outcome::Failed(format!(
                "the guest is not as it was:\n{}",
                turn.left.join("\n")
            ));
        }
        match outcome {
            Outcome::Failed(_) => session.close(false)?,
            _ => *self.session.borrow_mut() = Some(session),
        }
        Ok(outcome)
    }

    /// Ends the shared guest, if there is one.
    pub(crate) fn end(&self) -> Result<()> {
        self.session
            .take()
            .map_or(Ok(()), |session| session.close(true))
    }

    fn rust_job(&self, test: &RustTest) -> Result<Job> {
        let RustTest { name, of } = test;
        let binary = cargo::test_binary(self.layout, self.scope, of.package, name)?
            .display()
            .to_string();
        // Ignored ones too: those are the tests that need the lab. One at a time, because they share
        // the devices of the guest.
        let mut job = Job::new(name, &[&binary, "--include-ignored", "--test-threads=1"]);
        job.timeout = Some(RUST_TIMEOUT);
        job.environment
            .push(("FABRICBIOS_LAB".to_owned(), "1".to_owned()));
        Ok(job)
    }

    fn lab(&self) -> Result<&Lab> {
        let prepare = || {
            let built = self.scope.build_programs(self.layout);
            built.context("cannot build the programs under test")?;
            self.boot
                .prepare(self.layout, &[Need::Guest, Need::Build], &say)
        };
        let lab = self
            .lab
            .get_or_init(|| prepare().map_err(|error| format!("{error:#}")));
        lab.as_ref().map_err(|why| anyhow!("{why}"))
    }
}

/// One program of testbed/guest, without its machines.
fn program_job(suite: &Suite, layout: &Layout, profile: Profile) -> Job {
    let path = suite.path.display().to_string();
    let mut job = Job::new(&suite.name, &[&path]);
    job.timeout = Some(suite.wants.timeout);
    let programs = profile.programs(layout).display().to_string();
    job.environment
        .push(("FABRICBIOS_BIN".to_owned(), programs));
    job
}

/// Runs one program of testbed/guest in machines of its own.
pub(crate) fn run_program(
    lab: &Lab,
    suite: &Suite,
    layout: &Layout,
    profile: Profile,
) -> Result<Outcome> {
    run_alone(lab, program_job(suite, layout, profile), suite, layout)
}

/// As often as the suite wants, each time in a fresh guest with the same disk, until a boot does not pass.
fn run_alone(lab: &Lab, mut job: Job, suite: &Suite, layout: &Layout) -> Result<Outcome> {
    if suite.wants.machines == Machines::Two {
        return run_pair(lab, job);
    }
    job.preludes.push(Prelude::SoftRoce);
    let size = suite.wants.disk_bytes;
    let disk = size.map(|bytes| Disk::create(layout, bytes)).transpose()?;
    if let Some(disk) = &disk {
        disk.attach(&mut job);
    }
    let mut outcome = Outcome::Passed;
    for boot in 1..=suite.wants.boots {
        let mut job = job.clone();
        let number = ("LAB_BOOT".to_owned(), boot.to_string());
        job.environment.push(number);
        outcome = suite::outcome(&lab.run(&job)?);
        if outcome != Outcome::Passed {
            break;
        }
    }
    Ok(outcome)
}

fn run_pair(lab: &Lab, mut job: Job) -> Result<Outcome> {
    job.preludes.push(Prelude::LinkRoce);
    let [node, client] = ["node", "client"].map(|role| {
        let mut job = job.clone();
        job.command.push(role.to_owned());
        job
    });
    let results = lab.pair([&node, &client])?;
    let outcomes = results.map(|result| match result {
        Ok(finished) => suite::outcome(&finished),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    });
    Ok(worst(outcomes))
}

/// A scenario of two has passed when both ends have.
fn worst([node, client]: [Outcome; 2]) -> Outcome {
    match (node, client) {
        (Outcome::Failed(node), Outcome::Failed(client)) => {
            Outcome::Failed(format!("node: {node}; client: {client}"))
        }
        (Outcome::Failed(why), _) => Outcome::Failed(format!("node: {why}")),
        (_, Outcome::Failed(why)) => Outcome::Failed(format!("client: {why}")),
        (Outcome::Passed, other) | (other, _) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_pair_must_pass() {
        let failed = || Outcome::Failed("x".to_owned());
        let skipped = || Outcome::Skipped("y".to_owned());
        assert_eq!(worst([Outcome::Passed, Outcome::Passed]), Outcome::Passed);
        assert_eq!(worst([Outcome::Passed, skipped()]), skipped());
        assert_eq!(worst([skipped(), Outcome::Passed]), skipped());
        assert_eq!(
            worst([skipped(), failed()]),
            Outcome::Failed("client: x".to_owned())
        );
        assert_eq!(
            worst([failed(), Outcome::Passed]),
            Outcome::Failed("node: x".to_owned())
        );
    }
}
