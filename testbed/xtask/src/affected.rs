//! `cargo xtask test --affected`: the steps that a change can reach. Dependencies that neither cargo's graph nor the
//! headers of the suites show are left to the full run.

use crate::cargo::{output, program};
use crate::packages::Packages;
use crate::suites::{GUEST_DIRECTORY, Kind, Suites};
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use fabricbios_testbed::suite::Suite;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Steps that every change runs: of a few seconds, `metrics` of a minute.
const ALWAYS: [&str; 9] = [
    "fetch", "fmt", "python", "ruff", "shell", "deny", "nextest", "vectors", "metrics",
];
/// Steps that compile code that cargo has not compiled yet.
const OF_ANY_PACKAGE: [&str; 3] = ["clippy", "doctest", "doc"];
/// Steps of one package.
const OF_PACKAGE: [(&str, &str); 8] = [
    ("instructions", "fabricbios-bench"),
    ("sim", "fabricbios-node"),
    ("fleet-sim", "fabricbios-fleet-sim"),
    ("no-std", "fabricbios-no-std"),
    ("pip", "fabricbios-python"),
    ("gpu-features", "fabricbios-gpu"),
    ("gpu-test", "fabricbios-gpu-test"),
    ("fuzz", "fabricbios-fuzz"),
];
/// What starts the daemon for the tests of the Python package.
const PIP_HELPER: &str = "testbed/guest/fabric.py";
/// The package that tests the pages and the headers of the suites: every change can reach it.
const PAGES: &str = "xtask";
/// The programs that run in a guest, and the crate that boots guests.
const IN_GUESTS: [&str; 3] = ["fabricbios-node", "fabricbios-cli", "fabricbios-testbed"];

/// The steps and packages that a change can reach.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Affected {
    pub(crate) steps: BTreeSet<String>,
    /// The packages whose tests can fail.
    pub(crate) packages: BTreeSet<String>,
}

/// The steps and packages that the change from the commit `base` to the working tree can reach.
pub(crate) fn find(layout: &Layout, base: &str, suites: &Suites) -> Result<Affected> {
    let changed = output(program(
        layout,
        "git",
        &["diff", "-z", "--no-renames", "--name-only", base, "--"],
    ))
    .with_context(|| format!("--affected {base}: no such commit; name one"))?;
    let new = ["ls-files", "-z", "--others", "--exclude-standard"];
    let new = output(program(layout, "git", &new))?;
    let files = changed.split('\0').chain(new.split('\0'));
    let files: Vec<&Path> = files.filter(|it| !it.is_empty()).map(Path::new).collect();
    reached(layout, &Packages::read(layout)?, &files, suites)
}

fn reached(
    layout: &Layout,
    packages: &Packages,
    files: &[&Path],
    suites: &Suites,
) -> Result<Affected> {
    let builds_all = |it: &&Path| it.ends_with("Cargo.lock") || **it == *Path::new("Cargo.toml");
    let changed: BTreeSet<&str> = if files.iter().any(builds_all) {
        packages.0.iter().map(|it| it.name.as_str()).collect()
    } else {
        let of = files.iter().filter_map(|file| packages.of(file));
        of.map(|it| it.name.as_str()).collect()
    };
    let mut tested = packages.tested_with(&changed);
    let mut steps: BTreeSet<String> = ALWAYS.map(str::to_owned).into();
    if !tested.is_empty() {
        steps.extend(OF_ANY_PACKAGE.map(str::to_owned));
    }
    let of_packages = OF_PACKAGE.iter().filter(|(_, it)| tested.contains(*it));
    steps.extend(of_packages.map(|(step, _)| (*step).to_owned()));
    let is_example =
        |it: &&Path| it.starts_with("examples") && it.extension().is_some_and(|it| it == "py");
    if files
        .iter()
        .any(|it| *it == Path::new(PIP_HELPER) || is_example(it))
    {
        steps.insert("pip".to_owned());
    }
    let coverage = Coverage::of(packages, suites);
    let sources = Sources::read(layout)?;
    for kind in suites.kinds() {
        let is_reached = match kind {
            Kind::Rust(test) => tested.contains(test.package()),
            Kind::Program(_) if files.iter().any(builds_all) => true,
            Kind::Program(suite) => {
                let of_suites = |it: &&&Path| it.starts_with(GUEST_DIRECTORY);
                let (guest, others): (Vec<&Path>, Vec<&Path>) = files.iter().partition(of_suites);
                let is_source = !guest.is_empty() && {
                    let sources = sources.of(suite)?;
                    guest.iter().any(|it| sources.contains(*it))
                };
                is_source || others.iter().any(|it| coverage.reaches(it, suite))
            }
        };
        if is_reached {
            steps.insert(format!("lab:{}", kind.name()));
        }
    }
    tested.insert(PAGES);
    Ok(Affected {
        steps,
        packages: tested.into_iter().map(str::to_owned).collect(),
    })
}

/// The crates and folders that the suites cover.
struct Coverage<'a> {
    packages: &'a Packages,
    /// The folders that suites name; a change below them reaches only these suites.
    folders: BTreeSet<PathBuf>,
    in_guests: BTreeSet<&'a str>,
}

impl<'a> Coverage<'a> {
    fn of(packages: &'a Packages, suites: &Suites) -> Self {
        let covers = suites.kinds().flat_map(|kind| match kind {
            Kind::Program(suite) => suite.covers.as_slice(),
            Kind::Rust(_) => &[],
        });
        Self {
            packages,
            folders: covers.map(|it| folder(packages, it)).collect(),
            in_guests: IN_GUESTS.iter().flat_map(|it| packages.parts(it)).collect(),
        }
    }

    /// Whether a change of this file, which is no part of the suites, reaches the suite.
    fn reaches(&self, file: &Path, suite: &Suite) -> bool {
        let Some(package) = self.packages.of(file) else {
            return suite.covers.iter().any(|it| file.starts_with(it));
        };
        let inside = file.strip_prefix(&package.folder).unwrap_or(file);
        let is_of_tests = inside.starts_with("tests") || inside.starts_with("examples");
        if is_of_tests || file.extension().is_some_and(|it| it == "md") {
            return false;
        }
        if !self.folders.iter().any(|it| file.starts_with(it)) {
            return self.in_guests.contains(package.name.as_str());
        }
        suite.covers.iter().any(|it| {
            let crate_name = format!("fabricbios-{it}");
            file.starts_with(folder(self.packages, it))
                || self
                    .packages
                    .parts(&crate_name)
                    .contains(package.name.as_str())
        })
    }
}

/// The folder that a suite names, directly or by a crate.
fn folder(packages: &Packages, covered: &str) -> PathBuf {
    let package = packages.named(&format!("fabricbios-{covered}"));
    package.map_or_else(|| covered.into(), |it| it.folder.clone())
}

/// The files in the folder of the suites, and for each the files there that it imports or names.
struct Sources(BTreeMap<String, BTreeSet<String>>);

impl Sources {
    fn read(layout: &Layout) -> Result<Self> {
        let folder = layout.repository().join(GUEST_DIRECTORY);
        let entries = fs::read_dir(&folder)?;
        let names: BTreeSet<String> = entries
            .map(|it| Ok(it?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        let named = names.iter().map(|name| {
            // What is no text names nothing.
            let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
            (name.clone(), named_in(&text, &names))
        });
        Ok(Self(named.collect()))
    }

    /// The files of a suite: its own, and the files that it imports or names, directly or indirectly.
    fn of(&self, suite: &Suite) -> Result<BTreeSet<PathBuf>> {
        let own = suite.path.file_name().context("a suite is a file")?;
        let mut found = BTreeSet::from([own.to_string_lossy().into_owned()]);
        let mut next: Vec<String> = found.iter().cloned().collect();
        while let Some(name) = next.pop() {
            for named in self.0.get(&name).into_iter().flatten() {
                if found.insert(named.clone()) {
                    next.push(named.clone());
                }
            }
        }
        let guest = Path::new(GUEST_DIRECTORY);
        Ok(found.iter().map(|it| guest.join(it)).collect())
    }
}

/// Those of the names of files that a program imports or names.
fn named_in(text: &str, names: &BTreeSet<String>) -> BTreeSet<String> {
    let of_name = |it: char| it.is_ascii_alphanumeric() || ['_', '-', '.'].contains(&it);
    let words = text.split(|it| !of_name(it));
    let words = words.map(|it| it.trim_matches('.').to_owned());
    let imported = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let imports = matches!(words.next(), Some("import" | "from"));
        imports.then(|| words.next().map(|it| format!("{it}.py")))?
    });
    words
        .chain(imported)
        .filter(|it| names.contains(it))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(files: &[&str]) -> Affected {
        let layout = Layout::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .ancestors()
                .nth(2)
                .unwrap(),
        );
        let files: Vec<&Path> = files.iter().map(Path::new).collect();
        let suites = Suites::discover(&layout).unwrap();
        let packages = Packages::read(&layout).unwrap();
        reached(&layout, &packages, &files, &suites).unwrap()
    }

    fn suites(affected: &Affected) -> Vec<&str> {
        let suites = affected
            .steps
            .iter()
            .filter_map(|it| it.strip_prefix("lab:"));
        suites.collect()
    }

    #[test]
    fn what_every_lease_needs_reaches_every_suite() {
        let all = steps(&["Cargo.lock"]);
        for file in ["node/src/driver/mod.rs", "testbed/lab/src/lab.rs"] {
            let affected = steps(&[file]);
            let missing: Vec<_> = all.steps.difference(&affected.steps).collect();
            assert!(
                missing.iter().all(|it| !it.starts_with("lab:suite")),
                "{file}: {missing:?}"
            );
        }
    }

    #[test]
    fn a_kind_reaches_its_suites() {
        let folder = |name: &str| {
            let layout = Layout::new(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .ancestors()
                    .nth(2)
                    .unwrap(),
            );
            let packages = Packages::read(&layout).unwrap();
            packages.named(name).unwrap().folder.join("src/lib.rs")
        };
        let network = steps(&[folder("fabricbios-sriov").to_str().unwrap()]);
        let reached = ["operating", "suite_net_macvlan", "suite_net_vf"];
        assert_eq!(suites(&network), reached);
        assert!(network.packages.contains("fabricbios-sriov"));
        assert!(network.packages.contains("fabricbios-node"));
        assert!(!network.packages.contains("fabricbios-nvmet"));
        assert!(!network.steps.contains("fuzz"));
        let verbs = steps(&[folder("fabricbios-verbs").to_str().unwrap()]);
        assert!(suites(&verbs).contains(&"suite_mem_rdma"), "{verbs:?}");
        assert!(
            suites(&verbs).iter().any(|it| it.starts_with("rxe")),
            "{verbs:?}"
        );
        assert!(!suites(&verbs).contains(&"suite_gpu"), "{verbs:?}");
        let wire = steps(&[folder("fabricbios-wire").to_str().unwrap()]);
        assert!(
            wire.steps.contains("fuzz") && wire.steps.contains("no-std"),
            "{wire:?}"
        );
    }

    #[test]
    fn a_page_and_a_suite_reach_little() {
        let page = steps(&["docs/testing.md"]);
        assert_eq!(page.packages, BTreeSet::from(["xtask".to_owned()]));
        assert_eq!(page.steps, ALWAYS.map(str::to_owned).into());
        let shared = steps(&["testbed/guest/macvlan_ends.py"]);
        assert_eq!(suites(&shared), ["suite_net_macvlan"]);
        let named = steps(&["testbed/guest/vf_tx.c"]);
        assert_eq!(suites(&named), ["suite_net_vf"]);
        let example = steps(&["examples/rdma.c"]);
        assert_eq!(suites(&example), ["suite_examples"]);
        assert!(!example.steps.contains("pip"));
        for file in ["examples/buffer.py", PIP_HELPER] {
            assert!(steps(&[file]).steps.contains("pip"), "{file}");
        }
    }

    #[test]
    fn suites_cover_what_exists() {
        let layout = Layout::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .ancestors()
                .nth(2)
                .unwrap(),
        );
        let packages = Packages::read(&layout).unwrap();
        let all = Suites::discover(&layout).unwrap();
        for kind in all.kinds() {
            if let Kind::Program(suite) = kind {
                assert!(
                    !suite.covers.is_empty(),
                    "{}: no line `# covers:`",
                    suite.name
                );
            }
        }
        for folder in Coverage::of(&packages, &all).folders {
            assert!(
                layout.repository().join(&folder).exists(),
                "{}",
                folder.display()
            );
        }
        for (step, package) in OF_PACKAGE {
            assert!(packages.named(package).is_some(), "{step}: {package}");
        }
    }
}
