//! The lab suites: programs under testbed/guest, and Rust tests that need the lab kernel.

use crate::cargo::{self, Profile, Scope};
use crate::wheels;
use anyhow::Result;
use fabricbios_testbed::suite::{self, Machines, Suite};
use fabricbios_testbed::{Disk, Job, Lab, Layout, Outcome, Prelude, Processors};
use std::cmp::Reverse;
use std::path::Path;
use std::time::Duration;

/// The directory of the programs that run in guests.
pub(crate) const GUEST_DIRECTORY: &str = "testbed/guest";
/// Rust tests that need the lab, or root.
const RUST_TESTS: [RustTests; 8] = [
    RustTests {
        package: "fabricbios-rdma",
        directory: "premium/rdma/tests",
        prefix: "rxe",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-nvmet",
        directory: "premium/nvmet/tests",
        prefix: "nvmet",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-pool",
        directory: "host/pool/tests",
        prefix: "pool_device",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-cgroup",
        directory: "host/cgroup/tests",
        prefix: "cgroup_lab",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-local",
        directory: "host/local/tests",
        prefix: "socket",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-arena",
        directory: "host/arena/tests",
        prefix: "arena_owner",
        modules: &[],
    },
    RustTests {
        package: "fabricbios-scheduler",
        directory: "fleet/scheduler/tests",
        prefix: "credentials",
        modules: &[],
    },
    // The other modules need a browser, or nothing of the lab.
    RustTests {
        package: "fabricbios-node",
        directory: "node/tests",
        prefix: "operating",
        modules: &["check"],
    },
];
/// Rust tests that the short form leaves out, by suite: others go through the same, as the lines above them say.
const IN_FULL_LENGTH: [(&str, &str); 6] = [
    // suite_block_stuck
    (
        "nvmet",
        "a_stuck_device_delays_neither_its_cut_nor_other_leases_and_its_removal_is_given_up",
    ),
    // suite_block_ends and suite_block_rdma
    (
        "nvmet",
        "a_cut_ends_running_io_on_every_transport_and_a_neighbour_goes_on",
    ),
    // suite_block_ends
    (
        "nvmet",
        "many_leases_that_end_together_are_all_cut_before_the_first_is_proved",
    ),
    // suite_block_tcp
    (
        "nvmet",
        "a_host_of_a_tenant_is_shared_and_one_of_somebody_else_is_refused",
    ),
    // suite_block_tcp (`tenants`, `six`) and suite_block_rdma (`transfer`, `six`)
    (
        "nvmet",
        "only_the_right_host_with_the_right_key_connects_on_every_transport",
    ),
    // rxe_window: the steps of a bind are the same for windows and regions.
    ("rxe_region", "lives::binding::"),
];
/// Suites that take more than half a minute in their short form, the longest first.
const LONGEST: [&str; 38] = [
    "suite_net_vf",
    "suite_gpu_ends",
    "suite_cpu",
    "suite_gpu",
    "suite_fleet",
    "suite_journal_cut",
    "suite_block_reboot",
    "suite_examples",
    "suite_mem_stopped",
    "suite_block_tcp",
    "nvmet",
    "suite_block_bad_input",
    "suite_cpu_systemd",
    "suite_block_rdma",
    "suite_block_restart",
    "suite_net_macvlan",
    "suite_mem_region",
    "suite_block_ends",
    "suite_block_pools",
    "rxe_window",
    "suite_block_slow",
    "suite_block_fbbu",
    "suite_block_kinds",
    "suite_two_vm",
    "rxe_region",
    "suite_mem_deadline",
    "suite_cpu_limits",
    "suite_cpu_single",
    "suite_data_path",
    "suite_mooncake",
    "suite_compare",
    "suite_block_stuck",
    "suite_fbmu_netem",
    "suite_bad_input",
    "suite_fbmu_ends",
    "suite_cpu_offline",
    "suite_mem_both",
    "pool_device",
];
/// The variable that tells suites to run in full length.
const FULL: &str = "FABRICBIOS_FULL";
const RUST_TIMEOUT: Duration = Duration::from_secs(1800);

struct RustTests {
    package: &'static str,
    directory: &'static str,
    /// How the names of the test targets begin.
    prefix: &'static str,
    /// The modules whose tests run; all if there is none.
    modules: &'static [&'static str],
}

/// One target of Rust tests.
pub(crate) struct RustTest {
    name: String,
    of: &'static RustTests,
}

/// Every suite of this checkout.
pub(crate) struct Suites(Vec<Kind>);

/// One suite.
pub(crate) enum Kind {
    Program(Suite),
    Rust(RustTest),
}

impl Suites {
    /// Suites with their own guests come first, so that a lane with a shared guest keeps it to the end. Of these
    /// the suites with processors of their own come first, side by side, so that those with the same machine share it. In
    /// each group the longest come first, so that the lanes end at about the same time.
    pub(crate) fn discover(layout: &Layout) -> Result<Self> {
        let programs = suite::discover(&layout.repository().join(GUEST_DIRECTORY), "suite_")?;
        let programs = programs.into_iter().map(Kind::Program);
        let rust_tests = rust_tests(layout)?.into_iter().map(Kind::Rust);
        let mut all: Vec<Kind> = programs.chain(rust_tests).collect();
        let place = |kind: &Kind| LONGEST.iter().position(|name| *name == kind.name());
        all.sort_by_key(|kind| {
            let place = place(kind).unwrap_or(LONGEST.len());
            (kind.shares(), Reverse(kind.processors()), place)
        });
        Ok(Self(all))
    }

    /// The step name of each suite, and its machines.
    pub(crate) fn all(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.0.iter().map(|kind| {
            let machines = match kind {
                Kind::Program(suite) if suite.wants.machines == Machines::Two => {
                    "in two guests, soft-RoCE on the link between them"
                }
                Kind::Program(suite) if suite.wants.processors.is_some() => {
                    "in a guest with processors of its own choice"
                }
                kind if !kind.shares() => "in a guest of its own, with soft-RoCE",
                _ => "in a shared guest with soft-RoCE",
            };
            (format!("lab:{}", kind.name()), machines)
        })
    }

    /// Every suite.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }

    /// The suite at this index of [`Suites::all`].
    pub(crate) fn at(&self, index: usize) -> &Kind {
        &self.0[index]
    }
}

impl Kind {
    /// Its name, without `lab:`.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Program(suite) => &suite.name,
            Self::Rust(test) => &test.name,
        }
    }

    /// Whether the suite runs in the shared guest of its lane.
    pub(crate) fn shares(&self) -> bool {
        match self {
            Self::Program(suite) => suite.wants.shares(),
            Self::Rust(_) => true,
        }
    }

    /// The processors that the suite asks for.
    pub(crate) fn processors(&self) -> Option<Processors> {
        match self {
            Self::Program(suite) => suite.wants.processors,
            Self::Rust(_) => None,
        }
    }

    /// Whether the suite runs clients from the Python package index, which a host may be unable to fetch.
    pub(crate) fn clients(&self) -> bool {
        matches!(self, Self::Program(suite) if suite.wants.clients)
    }

    /// Whether runs of everything leave the suite out, unless they are in full length.
    pub(crate) fn is_for_full_length(&self) -> bool {
        matches!(self, Self::Program(suite) if suite.wants.full)
    }

    /// Whether the suite runs a scheduler with etcd.
    pub(crate) fn etcd(&self) -> bool {
        matches!(self, Self::Program(suite) if suite.wants.etcd)
    }

    /// Whether the suite must run alone.
    pub(crate) fn quiet(&self) -> bool {
        matches!(self, Self::Program(suite) if suite.wants.quiet)
    }

    /// The suite's command, in full length or in the short form. Builds the programs that it needs.
    pub(crate) fn job(&self, full: bool, layout: &Layout, scope: Scope) -> Result<Job> {
        if self.clients() {
            wheels::fetch_clients(layout, full);
        }
        let mut job = match self {
            Kind::Program(suite) => {
                if suite.wants.examples {
                    scope.build(layout, &["-p", "fabricbios-client", "--examples"])?;
                }
                if suite.wants.etcd {
                    scope.build(layout, &["-p", "fabricbios-scheduler", "--bins"])?;
                }
                program_job(suite, layout, Profile::Debug)
            }
            Kind::Rust(test) => test.job(full, layout, scope)?,
        };
        if full {
            job.environment.push((FULL.to_owned(), "1".to_owned()));
        }
        Ok(job)
    }
}

impl RustTest {
    /// The package that the suite belongs to.
    pub(crate) fn package(&self) -> &'static str {
        self.of.package
    }

    fn job(&self, full: bool, layout: &Layout, scope: Scope) -> Result<Job> {
        let Self { name, of } = self;
        let binary = cargo::test_binary(layout, scope, of.package, name)?
            .display()
            .to_string();
        // The ignored tests are those that need the lab; the others run on the host. One at a time, because they share the
        // devices of the guest.
        let mut job = Job::new(name, &[&binary, "--ignored", "--test-threads=1"]);
        let modules = of.modules.iter().map(|it| format!("{it}::"));
        job.command.extend(modules);
        if !full {
            let skipped = IN_FULL_LENGTH.iter().filter(|(suite, _)| suite == name);
            let words = skipped.flat_map(|(_, test)| ["--skip", test]);
            job.command.extend(words.map(str::to_owned));
        }
        job.timeout = Some(RUST_TIMEOUT);
        job.environment
            .push(("FABRICBIOS_LAB".to_owned(), "1".to_owned()));
        Ok(job)
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
            let is_target = is_rust || path.join("main.rs").is_file();
            if is_target && name.starts_with(self.prefix) {
                names.push(name.into_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

/// One program of testbed/guest, without its machines.
fn program_job(suite: &Suite, layout: &Layout, profile: Profile) -> Job {
    let path = suite.path.display().to_string();
    let mut job = Job::new(&suite.name, &[&path]);
    job.timeout = Some(suite.wants.timeout);
    if let Some(processors) = suite.wants.processors {
        job.vm.processors = processors;
    }
    let programs = profile.programs(layout).display().to_string();
    job.environment
        .push(("FABRICBIOS_BIN".to_owned(), programs));
    if suite.wants.clients {
        let clients = wheels::place_of_clients(layout).display().to_string();
        job.environment
            .push(("FABRICBIOS_CLIENTS".to_owned(), clients));
    }
    job
}

/// Runs one program of testbed/guest in a machine of its own, which prints its figures also as lines of JSON. Returns also
/// the end of its output.
pub(crate) fn run_bench(
    lab: &Lab,
    suite: &Suite,
    layout: &Layout,
    profile: Profile,
) -> Result<(Outcome, String)> {
    let mut job = program_job(suite, layout, profile);
    job.preludes.push(Prelude::SoftRoce);
    let wanted = ("FABRICBIOS_FIGURES".to_owned(), "1".to_owned());
    job.environment.push(wanted);
    let ended = lab.run(&job)?;
    Ok((suite::outcome(&ended), ended.output))
}

/// Runs the suite as often as its header asks for this length, each time in a fresh guest with the same disk, until a boot
/// does not pass.
pub(crate) fn run_alone(
    lab: &Lab,
    mut job: Job,
    suite: &Suite,
    layout: &Layout,
) -> Result<Outcome> {
    if suite.wants.machines == Machines::Two {
        return run_pair(lab, job);
    }
    job.preludes.push(Prelude::SoftRoce);
    job.systemd = suite.wants.systemd;
    if suite.wants.igb {
        job.add_igb();
    }
    let size = suite.wants.disk_bytes;
    let disk = size.map(|bytes| Disk::create(layout, bytes)).transpose()?;
    if let Some(disk) = &disk {
        disk.attach(&mut job);
    }
    let full = job.environment.iter().any(|(name, _)| name == FULL);
    let boots = if full {
        suite.wants.full_boots
    } else {
        suite.wants.boots
    };
    let mut outcome = Outcome::Passed;
    for boot in 1..=boots {
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

/// A suite of two machines has passed if both ends have passed.
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
    fn the_longest_suites_are_there() {
        let layout = Layout::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .ancestors()
                .nth(2)
                .unwrap(),
        );
        let suites = Suites::discover(&layout).unwrap();
        for name in LONGEST {
            assert!(suites.0.iter().any(|kind| kind.name() == name), "{name}");
        }
    }

    #[test]
    fn what_the_short_form_leaves_out_is_there() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        for (suite, test) in IN_FULL_LENGTH {
            let of = RUST_TESTS.iter().find(|of| suite.starts_with(of.prefix));
            let files = crate::files::below(&repository.join(of.unwrap().directory)).unwrap();
            let mut sources = files
                .iter()
                .map(|path| std::fs::read_to_string(path).unwrap());
            // A module, or a test.
            let says = match test.strip_suffix("::") {
                Some(module) => module.replace("lives::", "mod "),
                None => format!("fn {test}()"),
            };
            assert!(sources.any(|text| text.contains(&says)), "{suite} {test}");
        }
    }

    #[test]
    fn each_test_that_needs_root_or_the_lab_is_in_a_suite() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let waits = |text: &str| {
            let mut reasons = text.split("#[ignore = \"").skip(1);
            reasons.any(|it| it.starts_with("needs the lab") || it.starts_with("needs root"))
        };
        let mut seen = 0;
        for path in crate::files::below(repository).unwrap() {
            let is_rust = path.extension().is_some_and(|it| it == "rs");
            if !is_rust || !waits(&std::fs::read_to_string(&path).unwrap()) {
                continue;
            }
            seen += 1;
            let module = path.file_stem().unwrap().to_str().unwrap();
            let runs = RUST_TESTS.iter().any(|of| {
                path.starts_with(repository.join(of.directory))
                    && (of.modules.is_empty() || of.modules.contains(&module))
            });
            assert!(runs, "no suite of RUST_TESTS runs {}", path.display());
        }
        assert!(seen > 10, "{seen} files");
    }

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
