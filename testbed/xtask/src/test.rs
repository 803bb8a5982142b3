//! `cargo xtask test`: every check of the project, one after the other.

use crate::affected;
use crate::cargo::Scope;
use crate::checks;
use crate::lab::{BootArguments, say};
use crate::runner::{self, Chosen};
use crate::suites::{Kind, Suites};
use anyhow::{Result, bail};
use clap::Args;
use fabricbios_testbed::requirements::{self, Need};
use fabricbios_testbed::{Accelerator, Lab, Layout, Outcome, Report};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The arguments of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these steps; `lab` is all of the lab suites. A suite that is named itself runs in full length
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Only the steps and suites that the change since the commit BASE can reach, for quick answers while you work
    #[arg(long, value_name = "BASE", num_args = 0..=1, default_missing_value = "main", conflicts_with = "only")]
    affected: Option<String>,
    /// Everything in full length: fuzzing and the lab suites have a short form that is run otherwise
    #[arg(long)]
    full: bool,
    /// Show the steps and run none
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    boot: BootArguments,
}

/// One check.
struct Step {
    name: String,
    about: &'static str,
    /// Whether a skip of this step is no failure.
    may_skip: bool,
    /// The step needs no other installation.
    needs: &'static [Need],
    action: Action,
}

enum Action {
    Host(fn(&Layout) -> Result<Outcome>),
    Nextest,
    Sim,
    FleetSim,
    Pip,
    Gpu,
    Metrics,
    Instructions,
    Fuzz,
    Lab(usize),
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let suites = Suites::discover(layout)?;
    let all = steps(&suites);
    let affected = arguments.affected.as_deref();
    let affected = affected.map(|base| affected::find(layout, base, &suites));
    let affected = affected.transpose()?;
    let chosen = match &affected {
        None => {
            let mut chosen = choose(&all, &arguments.only)?;
            if arguments.only.is_empty() && !arguments.full {
                chosen.retain(|step| !step.is_for_full_length(&suites));
            }
            chosen
        }
        Some(it) => all
            .iter()
            .filter(|step| it.steps.contains(&step.name))
            .collect(),
    };
    if arguments.list {
        for step in chosen {
            println!("{:32} {}", step.name, step.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    requirements::ensure(layout, &needs(&chosen), arguments.boot.consent(), &say)?;
    let scope = if arguments.only.is_empty() {
        Scope::Workspace
    } else {
        Scope::Needed
    };
    let of_lab = |step: &&Step| matches!(step.action, Action::Lab(_));
    let (lab, steps): (Vec<&Step>, Vec<&Step>) = chosen.into_iter().partition(of_lab);
    // Then all tests have run before the steps behind them.
    let all_tests = affected.is_none() && arguments.only.is_empty();
    let full = |step: &Step| arguments.full || arguments.only.contains(&step.name);
    let run = |step: &Step| match step.action {
        Action::Host(action) => step.run(|| action(layout)),
        Action::Nextest => step.run(|| checks::nextest(layout, affected.as_ref())),
        Action::Sim => step.run(|| crate::sim::step(layout, scope)),
        Action::FleetSim => step.run(|| crate::fleet_sim::step(layout, scope)),
        Action::Pip => step.run(|| crate::pip::step(layout, scope)),
        Action::Gpu => step.run(|| crate::gpu_test::step(layout, scope)),
        Action::Metrics => step.run(|| crate::metrics::step(layout, scope, all_tests)),
        Action::Instructions => step.run(|| crate::instructions::step(layout, scope)),
        Action::Fuzz => step.run(|| crate::fuzz::step(layout, full(step))),
        Action::Lab(_) => unreachable!("it is in the other list"),
    };
    let run_all = |steps: &[&Step]| steps.iter().map(|step| run(step)).collect::<Vec<Ended>>();
    let run_all = &run_all;
    let mut report = Report::default();
    std::thread::scope(|threads| {
        // What the suites need from elsewhere is fetched and unpacked meanwhile. If it fails, the suites say why.
        if !lab.is_empty() {
            threads.spawn(|| fetch_for_lab(layout, arguments.full, &lab, &suites));
        }
        // Two threads run the seeds and the tests that wait, the longest by itself: meanwhile the steps behind them build.
        let mut waiting = None;
        for group in steps.chunk_by(|one, next| one.waits() == next.waits()) {
            if group[0].waits() {
                let (longest, others) = group.split_at(1);
                let running = [longest, others].map(|part| threads.spawn(move || run_all(part)));
                waiting = Some((group, running));
            } else {
                record(&mut report, group, run_all(group));
            }
        }
        if let Some((group, running)) = waiting {
            let ended = running.into_iter().flat_map(|part| {
                let ended = part.join();
                ended.unwrap_or_else(|why| resume_unwind(why))
            });
            record(&mut report, group, ended.collect());
        }
    });
    let lab = lab.into_iter().filter_map(|step| match step.action {
        Action::Lab(index) => Some(Chosen {
            name: &step.name,
            about: step.about,
            kind: suites.at(index),
            full: full(step),
        }),
        _ => None,
    });
    let lab = lab.collect();
    let start = Instant::now();
    if let Err(error) = runner::run(layout, &arguments.boot, scope, lab, &mut report) {
        println!("\nlab: {error:#}");
        let failed = Outcome::Failed(format!("{error:#}"));
        report.record("lab", failed, start.elapsed(), false);
    }
    Ok(conclude(&report))
}

/// Fetches the kernel of the guests, and the clients of the suites that run some.
fn fetch_for_lab(layout: &Layout, full: bool, lab: &[&Step], suites: &Suites) {
    // A named accelerator is not tried: a trial beside builds would take too long.
    if let Err(why) = Lab::prepare(layout, Some(Accelerator::Tcg), &say) {
        say(&format!("{why:#}"));
    }
    let mut kinds = lab.iter().filter_map(|step| match step.action {
        Action::Lab(index) => Some(suites.at(index)),
        _ => None,
    });
    if kinds.any(Kind::clients) {
        crate::wheels::fetch_clients(layout, full);
    }
}

fn record(report: &mut Report, steps: &[&Step], ended: Vec<Ended>) {
    for (step, (outcome, took)) in steps.iter().zip(ended) {
        report.record(&step.name, outcome, took, step.may_skip);
    }
}

/// The outcome of a step, and the time that it took.
type Ended = (Outcome, Duration);

impl Step {
    fn run(&self, action: impl FnOnce() -> Result<Outcome>) -> Ended {
        println!("\n== {}: {}", self.name, self.about);
        let start = Instant::now();
        let outcome = action().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        if let Outcome::Failed(why) | Outcome::Skipped(why) = &outcome {
            println!("{}: {why}", self.name);
        }
        (outcome, start.elapsed())
    }

    fn is_for_full_length(&self, suites: &Suites) -> bool {
        matches!(self.action, Action::Lab(index) if suites.at(index).is_for_full_length())
    }

    /// Whether the step leaves a processor of the host to others for most of its time. Such steps stand in the list beside each
    /// other, and show their output when they have ended.
    fn waits(&self) -> bool {
        matches!(
            self.action,
            Action::Sim | Action::FleetSim | Action::Pip | Action::Gpu
        )
    }
}

fn needs(chosen: &[&Step]) -> Vec<Need> {
    let needs = chosen.iter().flat_map(|step| step.needs);
    needs.copied().collect()
}

fn conclude(report: &Report) -> ExitCode {
    let ci = std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false");
    println!("\n{report}");
    let verdict = report.verdict(ci);
    if let Err(why) = &verdict {
        println!("{why}\n");
    }
    println!("{}", report.summary());
    if verdict.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn choose<'a>(all: &'a [Step], only: &[String]) -> Result<Vec<&'a Step>> {
    let matches = |step: &Step, wanted: &str| {
        let family = step
            .name
            .strip_prefix(wanted)
            .is_some_and(|rest| rest.starts_with(':'));
        family || step.name == wanted
    };
    for wanted in only {
        if !all.iter().any(|step| matches(step, wanted)) {
            let names: Vec<&str> = all.iter().map(|step| step.name.as_str()).collect();
            bail!("there is no step `{wanted}`; there are {}", names.join(" "));
        }
    }
    let wanted = |step: &&Step| only.is_empty() || only.iter().any(|name| matches(step, name));
    Ok(all.iter().filter(wanted).collect())
}

fn steps(suites: &Suites) -> Vec<Step> {
    use Need::{Build, Clients, Deny, Etcd, Guest, Lint, Nextest, Python};
    let host = |name: &str, about, needs, action| Step {
        name: name.to_owned(),
        about,
        may_skip: ["advisories", "ruff"].contains(&name),
        needs,
        action: Action::Host(action),
    };
    let mut steps = vec![
        host(
            "fetch",
            "Cargo.lock is up to date; dependencies",
            &[],
            checks::fetch,
        ),
        host("fmt", "formatting", &[], checks::fmt),
        host(
            "clippy",
            "lints, warnings are errors",
            &[Build],
            checks::clippy,
        ),
        host(
            "python",
            "Python programs use no name that is not there",
            &[Python],
            checks::python,
        ),
        host(
            "ruff",
            "lints of the Python programs",
            &[Lint],
            checks::ruff,
        ),
        host(
            "shell",
            "lints of the shell programs",
            &[Lint],
            checks::shell,
        ),
        host(
            "deny",
            "licences, bans and sources of dependencies",
            &[Deny],
            checks::deny,
        ),
        host(
            "advisories",
            "known vulnerabilities of dependencies",
            &[Deny],
            checks::advisories,
        ),
        Step {
            name: "nextest".to_owned(),
            about: "unit and property tests",
            may_skip: false,
            needs: &[Build, Nextest, Etcd, Python],
            action: Action::Nextest,
        },
        Step {
            name: "fleet-sim".to_owned(),
            about: "many nodes with schedulers and etcd, under the faults of this commit's seed",
            may_skip: false,
            needs: &[Build, Etcd],
            action: Action::FleetSim,
        },
        Step {
            name: "sim".to_owned(),
            about: "the node on a simulated machine, with the seeds of this commit",
            may_skip: false,
            needs: &[Build, Nextest],
            action: Action::Sim,
        },
        Step {
            name: "pip".to_owned(),
            about: "the wheel of the Python package, built, installed and tested",
            may_skip: true,
            needs: &[Build, Lint],
            action: Action::Pip,
        },
        Step {
            name: "gpu-test".to_owned(),
            about: "GPU leases on stand-ins of the vendors' libraries",
            may_skip: false,
            needs: &[Build],
            action: Action::Gpu,
        },
        host(
            "doctest",
            "examples in the documentation",
            &[Build],
            checks::doctest,
        ),
        host(
            "doc",
            "documentation builds, warnings are errors",
            &[Build],
            checks::doc,
        ),
        host(
            "vectors",
            "golden bytes, read by a second decoder",
            &[Python],
            checks::vectors,
        ),
        Step {
            name: "metrics".to_owned(),
            about: "pages of metrics, alerts and dashboards, before Prometheus and its parsers",
            may_skip: true,
            needs: &[Build, Nextest, Etcd, Python],
            action: Action::Metrics,
        },
        Step {
            name: "instructions".to_owned(),
            about: "instructions of hot paths, against committed counts",
            may_skip: true,
            needs: &[Build],
            action: Action::Instructions,
        },
    ];
    steps.push(host(
        "no-std",
        "the pure crates build without the standard library",
        &[Build],
        checks::no_std,
    ));
    steps.push(Step {
        name: "fuzz".to_owned(),
        about: "parsers and sequences of operations, coverage-guided, for some seconds",
        may_skip: false,
        needs: &[Build],
        action: Action::Fuzz,
    });
    steps.push(host(
        "gpu-features",
        "GPU leases of each vendor alone, and of none",
        &[Build],
        crate::gpu_test::features,
    ));
    steps.extend(suites.all().enumerate().map(|(index, (name, about))| Step {
        name,
        about,
        may_skip: suites.at(index).clients(),
        needs: match suites.at(index) {
            kind if kind.clients() => &[Guest, Build, Clients],
            kind if kind.etcd() => &[Guest, Build, Etcd],
            _ => &[Guest, Build],
        },
        action: Action::Lab(index),
    }));
    steps
}

/// The names of all steps, for tests of the pages.
#[cfg(test)]
pub(crate) fn step_names(suites: &Suites) -> Vec<String> {
    let names = steps(suites).into_iter().map(|step| step.name);
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn names(only: &[&str]) -> Result<Vec<String>> {
        let step = |name: &str| Step {
            name: name.to_owned(),
            about: "",
            may_skip: false,
            needs: &[],
            action: Action::Lab(0),
        };
        let all = ["fmt", "doc", "doctest", "lab:a", "lab:b"].map(step);
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Ok(choose(&all, &only)?
            .iter()
            .map(|step| step.name.clone())
            .collect())
    }

    #[test]
    fn only_takes_whole_names_and_families() {
        assert_eq!(names(&["doc"]).unwrap(), ["doc"]);
        assert_eq!(names(&["lab"]).unwrap(), ["lab:a", "lab:b"]);
        assert_eq!(names(&["lab:b", "fmt"]).unwrap(), ["fmt", "lab:b"]);
        assert_eq!(names(&[]).unwrap().len(), 5);
    }

    #[test]
    fn a_few_steps_need_less_than_all() {
        let layout = Layout::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .ancestors()
                .nth(2)
                .unwrap(),
        );
        let all = steps(&Suites::discover(&layout).unwrap());
        let of = |only: &str| needs(&choose(&all, &[only.to_owned()]).unwrap());
        assert!(of("fmt").is_empty());
        assert_eq!(of("vectors"), [Need::Python]);
        assert_eq!(of("deny"), [Need::Deny]);
        assert_eq!(
            of("nextest"),
            [Need::Build, Need::Nextest, Need::Etcd, Need::Python]
        );
        assert!(of("lab").contains(&Need::Guest));
        assert!(
            Need::ALL
                .iter()
                .all(|need| needs(&all.iter().collect::<Vec<_>>()).contains(need))
        );
    }

    #[test]
    fn a_step_that_is_not_there_is_an_error_and_not_a_run_of_nothing() {
        assert!(
            names(&["fmt", "clipy"])
                .unwrap_err()
                .to_string()
                .contains("no step `clipy`")
        );
    }
}
