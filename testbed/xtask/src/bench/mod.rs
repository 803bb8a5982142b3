//! `cargo xtask bench`: the measurements in bench/ and those that need the lab; docs/bench.md, which is made from them.

mod figures;
mod goals;
mod page;
mod plan;
mod plot;

use crate::cargo::{self, Profile, Scope, cargo};
use crate::gpu_test::run_on_stand_ins;
use crate::lab::{BootArguments, say};
use crate::pip;
use crate::suites::run_bench;
use crate::wheels;
use anyhow::{Context, Result, bail};
use clap::Args;
use fabricbios_testbed::requirements::{self, Need};
use fabricbios_testbed::{Accelerator, Layout, Outcome, Report};
use figures::{Machine, Run};
use plan::{Bench, GPU, HOST, PYTHON};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// The lines of a run of everything.
const LINES: &str = "docs/bench.json";

/// The arguments of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Fewer operations in a round: some ten minutes on two cores, without the builds
    #[arg(long)]
    quick: bool,
    /// The file of the lines: the machine, then each figure. Otherwise docs/bench.json, or with --only target/bench.json
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these benches, and leave docs/bench.md alone
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Run the benches of the lab too, which takes hours
    #[arg(long)]
    lab: bool,
    /// Measure nothing: make docs/bench.md and its plots again from the lines
    #[arg(long, conflicts_with_all = ["quick", "only", "lab"])]
    page: bool,
    /// Count the instructions of hot paths under valgrind, and make these the counts of this compiler
    #[arg(long, conflicts_with_all = ["quick", "json", "only", "lab", "page"])]
    instructions: bool,
    #[command(flatten)]
    boot: BootArguments,
}

impl Arguments {
    /// The file of the lines.
    fn lines(&self, layout: &Layout) -> PathBuf {
        let usual = match self.only.is_empty() {
            true => layout.repository().join(LINES),
            false => layout.target().join("bench.json"),
        };
        self.json.clone().unwrap_or(usual)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|it| it == name)
    }
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.instructions {
        crate::instructions::write(layout)?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = arguments.lines(layout);
    if arguments.page {
        write_page(layout, &path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let known = plan::names(layout)?;
    if let Some(unknown) = arguments.only.iter().find(|it| !known.contains(it)) {
        bail!(
            "there is no bench {unknown}; there are {}",
            known.join(", ")
        );
    }
    requirements::ensure(layout, &[Need::Build], arguments.boot.consent(), &say)?;
    build(layout)?;
    let mut run = Run {
        machine: machine(layout, arguments.quick)?,
        figures: Vec::new(),
        skipped: Vec::new(),
    };
    let mut report = Report::default();
    for bench in HOST.iter().filter(|it| arguments.wants(it.name)) {
        println!("\n== {}", bench.name);
        let start = Instant::now();
        let ended = outcome(host(layout, bench, &mut run));
        note(&mut run, bench.name, &ended);
        report.record(bench.name, ended, start.elapsed(), bench.name == PYTHON);
    }
    lab(layout, arguments, &mut run, &mut report)?;
    let is_whole = arguments.only.is_empty();
    for (name, why) in plan::ELSEWHERE.iter().filter(|_| is_whole) {
        run.skip(name, why);
    }
    std::fs::write(&path, run.lines()?).with_context(|| format!("write {}", path.display()))?;
    println!("\n{} has the figures", path.display());
    if is_whole {
        write_page(layout, &path)?;
    }
    println!("\n{report}{}", report.summary());
    Ok(match report.verdict(false) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Builds the benches and what they start. All is optimised, because it is compared with other programs.
fn build(layout: &Layout) -> Result<()> {
    let mut command = cargo(layout, &["build", "--release", "--bins"])?;
    for package in ["node", "cli", "scheduler", "gpu-test", "bench"] {
        command.arg(format!("-pfabricbios-{package}"));
    }
    cargo::run(command)
}

/// Runs a bench of this machine, and adds its figures.
fn host(layout: &Layout, bench: &Bench, run: &mut Run) -> Result<Outcome> {
    let quick = run.machine.quick;
    if bench.name == PYTHON {
        if quick {
            return Ok(Outcome::Skipped(
                "a quick run does not build its wheel".to_owned(),
            ));
        }
        if let Err(why) = pip::install_tools(layout) {
            return Ok(Outcome::Skipped(format!("{why:#}")));
        }
        pip::installed(layout, Profile::Release)?;
    }
    let lines = layout.target().join("bench-lines");
    std::fs::write(&lines, "")?;
    let program = layout.target().join("release/fabricbios-bench");
    let mut command = cargo::program(layout, &program.to_string_lossy(), &["--json"]);
    command.arg(&lines).arg(bench.name);
    command.args(if quick { bench.quick } else { bench.full });
    let ran = match bench.name {
        GPU => run_on_stand_ins(layout, command, Scope::Needed, cargo::run),
        _ => cargo::run(command),
    };
    // A bench that failed may have measured something before.
    run.add(&std::fs::read_to_string(&lines)?, false)?;
    Ok(match ran {
        Ok(()) => Outcome::Passed,
        // It has said why. The error names a path of this machine, which is nothing for a page.
        Err(_) => Outcome::Failed("its output says why".to_owned()),
    })
}

/// Runs the benches of the lab that are asked for; names the others.
fn lab(layout: &Layout, arguments: &Arguments, run: &mut Run, report: &mut Report) -> Result<()> {
    let mut prepared = None;
    let is_whole = arguments.only.is_empty();
    for bench in plan::of_lab(layout)? {
        if is_whole && !arguments.lab {
            run.skip(&bench.name, "it needs a guest: `--lab` runs it");
            continue;
        }
        if !arguments.wants(&bench.name) {
            continue;
        }
        println!("\n== {}", bench.name);
        let lab = match &prepared {
            Some(lab) => lab,
            None => prepared.insert(arguments.boot.prepare(layout, &[Need::Guest], &say)?),
        };
        let is_emulated = lab.accelerator() == Accelerator::Tcg;
        run.machine.emulated = Some(is_emulated);
        if bench.wants.clients {
            wheels::fetch_clients(layout, false);
        }
        let start = Instant::now();
        let ended = run_bench(lab, &bench, layout, Profile::Release);
        let ended = outcome(ended.and_then(|(ended, output)| {
            let is_figure = |it: &&str| it.starts_with("{\"name\":");
            let lines: Vec<&str> = output.lines().map(str::trim).filter(is_figure).collect();
            run.add(&lines.join("\n"), is_emulated)?;
            Ok(ended)
        }));
        note(run, &bench.name, &ended);
        report.record(&format!("lab:{}", bench.name), ended, start.elapsed(), true);
    }
    Ok(())
}

/// Says in the lines why a bench has no figures, or not all of them.
fn note(run: &mut Run, name: &str, ended: &Outcome) {
    match ended {
        Outcome::Passed => {}
        Outcome::Skipped(why) => run.skip(name, why),
        Outcome::Failed(why) | Outcome::Flaky(why) => run.skip(name, &format!("it failed: {why}")),
    }
}

fn write_page(layout: &Layout, lines: &Path) -> Result<()> {
    let text = std::fs::read_to_string(lines);
    let text = text.with_context(|| format!("read {}", lines.display()))?;
    let run = Run::parse(&text).with_context(|| format!("{}", lines.display()))?;
    let plots = plot::PLOTS.map(|(path, colours)| (path, plot::plot(&run, colours)));
    for (path, text) in [(page::PAGE, page::page(&run))].into_iter().chain(plots) {
        std::fs::write(layout.repository().join(path), text)
            .with_context(|| format!("write {path}"))?;
    }
    say(&format!("{} is made from {}", page::PAGE, lines.display()));
    Ok(())
}

/// This machine and this checkout.
fn machine(layout: &Layout, quick: bool) -> Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let cpus = read("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let load = read("/proc/loadavg")?;
    let told = |name, words: &[&str]| -> Result<String> {
        let told = cargo::output(cargo::program(layout, name, words))?;
        Ok(told.trim().to_owned())
    };
    let changed = told("git", &["status", "--porcelain", "--untracked-files=no"])?;
    let commit = told("git", &["rev-parse", "--short=12", "HEAD"])?;
    Ok(Machine {
        cpu: model.unwrap_or_else(|| "unknown".to_owned()),
        cores: std::thread::available_parallelism()?.get(),
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        load: load.split(' ').next().context("no load")?.parse()?,
        commit: match changed.is_empty() {
            true => commit,
            false => format!("{commit} with changes"),
        },
        date: told("date", &["-u", "+%F"])?,
        quick,
        emulated: None,
    })
}

fn outcome(result: Result<Outcome>) -> Outcome {
    result.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn layout() -> Layout {
        Layout::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    /// Whatever was measured last, the page says that and nothing else.
    #[test]
    fn the_page_and_its_plots_are_what_the_lines_give() {
        let read = |path: &str| std::fs::read_to_string(layout().repository().join(path)).unwrap();
        let run = Run::parse(&read(LINES)).unwrap();
        let advice = "cargo xtask bench --page makes it again";
        assert!(
            page::page(&run) == read(page::PAGE),
            "{}: {advice}",
            page::PAGE
        );
        for (path, colours) in plot::PLOTS {
            assert!(plot::plot(&run, colours) == read(path), "{path}: {advice}");
        }
    }
}
