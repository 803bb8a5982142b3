//! `cargo xtask fuzz`: coverage-guided fuzzing of the code that reads a peer's bytes.
//!
//! The targets are in testbed/fuzz/. They are built with the project's own compiler: the coverage counters are a
//! pass of LLVM that needs no nightly, and address sanitising would find little in code without unsafe.
//! New inputs of a run stay in target/fuzz/corpus; `--keep` adds the useful ones to the corpora in
//! testbed/fuzz/corpus.

use crate::cargo::{self, cargo};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use fabricbios_testbed::requirements::{self, Consent, Need};
use fabricbios_testbed::{Layout, Outcome};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters for edges and comparisons, as libFuzzer wants them.
const COVERAGE: &str = "-Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Ccodegen-units=1 \
     --cfg fuzzing";
/// With an explicit target, cargo builds build scripts and macros without the counters.
const TRIPLE: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-unknown-linux-gnu"
} else {
    "x86_64-unknown-linux-gnu"
};
/// Time of each target in `cargo xtask test`: long enough for the whole corpus and some new inputs.
const TEST_SECS: u32 = 3;
const FULL_SECS: u32 = 60;
/// The longest input: longer ones find little more and take more time.
const INPUT_BYTES_MAX: u32 = 2048;

/// The arguments of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these targets
    targets: Vec<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value_t = 60)]
    secs: u32,
    /// Add the inputs that reach something new to the corpora in testbed/fuzz/corpus
    #[arg(long)]
    keep: bool,
    /// Install what is missing without asking
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let consent = if arguments.yes {
        Consent::Given
    } else {
        Consent::Ask
    };
    requirements::ensure(layout, &[Need::Build], consent, &crate::lab::say)?;
    let all = targets(layout)?;
    for wanted in &arguments.targets {
        ensure!(
            all.contains(wanted),
            "there is no target `{wanted}`; there are {all:?}"
        );
    }
    let chosen = if arguments.targets.is_empty() {
        &all
    } else {
        &arguments.targets
    };
    let fuzz = Fuzz::prepare(layout)?;
    fuzz.run(chosen, arguments.secs)?;
    if arguments.keep {
        chosen.iter().try_for_each(|target| fuzz.keep(target))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask test`: every target.
pub(crate) fn step(layout: &Layout, full: bool) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped(
            "the fuzz targets are built for x86_64 only".to_owned(),
        ));
    }
    let all = targets(layout)?;
    ensure!(!all.is_empty(), "there is no fuzz target");
    let fuzz = Fuzz::prepare(layout)?;
    fuzz.run(&all, if full { FULL_SECS } else { TEST_SECS })?;
    Ok(Outcome::Passed)
}

/// The names of the targets, in the order of the manifest.
fn targets(layout: &Layout) -> Result<Vec<String>> {
    let manifest = layout.repository().join("testbed/fuzz/Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let binaries = text.split("[[bin]]").skip(1);
    let name = |binary: &str| {
        let line = binary
            .lines()
            .find_map(|line| line.strip_prefix("name = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    Ok(binaries.filter_map(name).collect())
}

/// Cargo's `subcommand` for the targets, with the counters.
pub(crate) fn cargo_for(layout: &Layout, subcommand: &str, words: &[&str]) -> Result<Command> {
    let all = [subcommand, "--release", "--locked", "--target", TRIPLE];
    let mut command = cargo(layout, &[&all, words].concat())?;
    command
        .current_dir(layout.repository().join("testbed/fuzz"))
        .env("CARGO_TARGET_DIR", work(layout))
        .env("RUSTFLAGS", COVERAGE);
    Ok(command)
}

fn work(layout: &Layout) -> PathBuf {
    layout.target().join("fuzz")
}

/// Built targets, and where their inputs are.
struct Fuzz<'a> {
    layout: &'a Layout,
    work: PathBuf,
}

impl<'a> Fuzz<'a> {
    fn prepare(layout: &'a Layout) -> Result<Self> {
        cargo::run(cargo_for(layout, "build", &[])?)?;
        let fuzz = Self {
            layout,
            work: work(layout),
        };
        fuzz.write_seeds()?;
        Ok(fuzz)
    }

    /// The golden vectors are the best inputs to start from.
    fn write_seeds(&self) -> Result<()> {
        let vectors = self.layout.repository().join("testbed/vectors/v0");
        for entry in fs::read_dir(&vectors).with_context(|| vectors.display().to_string())? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let Some((target, bytes)) = seed(&text) else {
                continue;
            };
            let directory = self.seeds(target);
            fs::create_dir_all(&directory)?;
            fs::write(directory.join(path.file_stem().unwrap_or_default()), bytes)?;
        }
        Ok(())
    }

    /// Runs these targets, two at a time.
    fn run(&self, targets: &[String], secs: u32) -> Result<()> {
        let next = AtomicUsize::new(0);
        let turns = || -> Result<()> {
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.run_one(target, secs)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers = [scope.spawn(turns), scope.spawn(turns)];
            workers.into_iter().try_for_each(|worker| {
                let ended = worker.join();
                ended.map_err(|_panic| anyhow!("a thread that runs targets panicked"))?
            })
        })
    }

    /// Fuzzes one target, and reports the number of executions.
    fn run_one(&self, target: &str, secs: u32) -> Result<()> {
        let found = self.found(target);
        let crashes = self.work.join("crashes").join(target);
        fs::create_dir_all(&found)?;
        fs::create_dir_all(&crashes)?;
        let mut command = self.command(target);
        command
            .arg(format!("-max_total_time={secs}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .args(["-timeout=10", "-print_final_stats=1", "-verbosity=0"])
            .arg(format!("-artifact_prefix={}/", crashes.display()))
            .arg(&found)
            .args(self.inputs(target));
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start the target {target}"))?;
        if !output.status.success() {
            bail!(
                "{target} found a defect; its input is in {}:\n{}",
                crashes.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let executions = executions(&String::from_utf8_lossy(&output.stderr))
            .with_context(|| format!("{target} does not say how often it was executed"))?;
        ensure!(executions > 0, "{target} was not executed");
        println!("{target:16} {executions:>10} executions in {secs} s");
        Ok(())
    }

    /// Adds to testbed/fuzz/corpus the inputs that reach code which its own inputs do not reach.
    fn keep(&self, target: &str) -> Result<()> {
        let kept = self
            .layout
            .repository()
            .join("testbed/fuzz/corpus")
            .join(target);
        fs::create_dir_all(&kept)?;
        let mut command = self.command(target);
        command
            .args(["-merge=1", "-verbosity=0"])
            .arg(&kept)
            .arg(self.found(target));
        cargo::run(command)
    }

    fn command(&self, target: &str) -> Command {
        let program = self.work.join(TRIPLE).join("release").join(target);
        cargo::program(self.layout, &program.display().to_string(), &[])
    }

    /// Inputs that exist before a run; the run does not change them.
    fn inputs(&self, target: &str) -> Vec<PathBuf> {
        let corpus = self
            .layout
            .repository()
            .join("testbed/fuzz/corpus")
            .join(target);
        let there = |path: &PathBuf| path.is_dir();
        [corpus, self.seeds(target)]
            .into_iter()
            .filter(there)
            .collect()
    }

    fn found(&self, target: &str) -> PathBuf {
        self.work.join("corpus").join(target)
    }

    fn seeds(&self, target: &str) -> PathBuf {
        self.work.join("seeds").join(target)
    }
}

/// The number of executions in libFuzzer's statistics at the end of a run.
fn executions(told: &str) -> Option<u64> {
    let value = |line: &str| {
        line.strip_prefix("stat::number_of_executed_units:")?
            .trim()
            .parse()
            .ok()
    };
    told.lines().find_map(value)
}

/// The target for which a golden vector is an input, and the vector's bytes.
fn seed(vector: &str) -> Option<(&'static str, Vec<u8>)> {
    let kind = vector
        .lines()
        .find_map(|line| line.strip_prefix("# kind: "))?;
    let target = match kind.trim() {
        "request" => "requests",
        "answer" => "answers",
        "gpu_request" | "gpu_answer" => "gpu_sessions",
        "flat" | "structured" => "inventories",
        "data_request" | "data_reply" | "discovery" => "data_frames",
        _ => return None,
    };
    let digits: String = vector
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::chars)
        .collect();
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes = (0..digits.len())
        .step_by(2)
        .map(byte)
        .collect::<Option<_>>()?;
    Some((target, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_vector_is_a_seed_of_its_kind() {
        let vector = "# name: x\n# kind: answer\n# expect: ok\n0080\nff\n";
        assert_eq!(seed(vector), Some(("answers", vec![0, 0x80, 0xff])));
        assert_eq!(seed("# kind: tlv\n00\n"), None);
        assert_eq!(seed("# kind: answer\n0\n"), None);
    }

    #[test]
    fn how_often_a_target_ran_is_what_it_said_itself() {
        let told = "INFO: seed corpus\nstat::number_of_executed_units: 5312\nstat::average_exec_per_sec: 1770\n";
        assert_eq!(executions(told), Some(5312));
        assert_eq!(executions("INFO: seed corpus\n"), None);
    }

    #[test]
    fn every_file_of_a_target_is_a_target() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let named = targets(&Layout::new(repository)).unwrap();
        for entry in fs::read_dir(repository.join("testbed/fuzz/targets")).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            assert!(
                path.is_dir() || named.iter().any(|target| target == stem),
                "{stem}"
            );
        }
    }
}
