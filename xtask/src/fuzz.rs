//! `cargo xtask fuzz`: coverage-guided fuzzing of what reads a peer's bytes.
//!
//! The targets are in fuzz/. They are built with the project's own compiler: the coverage counters
//! are a pass of LLVM that needs no nightly, and address sanitising would find little in code without
//! unsafe. What a run finds new stays in target/fuzz/corpus; `--keep` adds what matters to the corpora in
//! fuzz/corpus.

use crate::cargo::{self, cargo};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fabricbios_testbed::requirements::{self, Consent, Need};
use fabricbios_testbed::{Layout, Outcome};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Counters for edges and comparisons, as libFuzzer wants them.
const COVERAGE: &str = "-Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Ccodegen-units=1 \
     --cfg fuzzing";
/// Named, so that build scripts and macros are built without the counters.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Of a target's run within `cargo xtask test`: long enough to go through the corpora and some way on.
const TEST_SECS: u32 = 3;
/// Longest input: long ones find little that short ones do not, and take long.
const INPUT_BYTES_MAX: u32 = 2048;

/// What `cargo xtask fuzz` takes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only these targets
    targets: Vec<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value_t = 60)]
    secs: u32,
    /// Add the inputs that reach something new to the corpora in fuzz/corpus
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
    let names: Vec<&String> = all.iter().map(|target| &target.name).collect();
    for wanted in &arguments.targets {
        ensure!(
            names.contains(&wanted),
            "there is no target `{wanted}`; there are {names:?}"
        );
    }
    let chosen =
        |target: &&Target| arguments.targets.is_empty() || arguments.targets.contains(&target.name);
    let chosen: Vec<&Target> = all.iter().filter(chosen).collect();
    let fuzz = Fuzz::prepare(layout, &chosen)?;
    for target in chosen {
        fuzz.run(&target.name, arguments.secs)?;
        if arguments.keep {
            fuzz.keep(&target.name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask test`: every target that is quickly built, for a short time.
pub(crate) fn step(layout: &Layout) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped(format!(
            "the fuzz targets are built for {TRIPLE} only"
        )));
    }
    let all = targets(layout)?;
    let (others, chosen): (Vec<&Target>, Vec<&Target>) =
        all.iter().partition(|target| target.needs_control);
    ensure!(!chosen.is_empty(), "there is no fuzz target");
    let fuzz = Fuzz::prepare(layout, &chosen)?;
    for target in chosen {
        fuzz.run(&target.name, TEST_SECS)?;
    }
    for target in others {
        println!("by name only: {}", target.name);
    }
    Ok(Outcome::Passed)
}

/// What is fuzzed.
struct Target {
    name: String,
    /// Built with the control plane, which takes longer than all else.
    needs_control: bool,
}

/// The targets, in the order of the manifest.
fn targets(layout: &Layout) -> Result<Vec<Target>> {
    let manifest = layout.repository().join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let binaries = text.split("[[bin]]").skip(1);
    let target = |binary: &str| {
        let line = binary
            .lines()
            .find_map(|line| line.strip_prefix("name = "))?;
        Some(Target {
            name: line.trim_matches('"').to_owned(),
            needs_control: binary.contains(r#"required-features = ["control"]"#),
        })
    };
    Ok(binaries.filter_map(target).collect())
}

/// Built targets, and where their inputs are.
struct Fuzz<'a> {
    layout: &'a Layout,
    work: PathBuf,
}

impl<'a> Fuzz<'a> {
    fn prepare(layout: &'a Layout, targets: &[&Target]) -> Result<Self> {
        let work = layout.target().join("fuzz");
        let mut build = cargo(
            layout,
            &["build", "--release", "--locked", "--target", TRIPLE],
        )?;
        build
            .current_dir(layout.repository().join("fuzz"))
            .env("CARGO_TARGET_DIR", &work)
            .env("RUSTFLAGS", COVERAGE);
        if targets.iter().any(|target| target.needs_control) {
            build.args(["--features", "control"]);
        }
        cargo::run(build)?;
        let fuzz = Self { layout, work };
        fuzz.write_seeds()?;
        Ok(fuzz)
    }

    /// The golden vectors are the best inputs to start from.
    fn write_seeds(&self) -> Result<()> {
        let vectors = self.layout.repository().join("vectors/v0");
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

    fn run(&self, target: &str, secs: u32) -> Result<()> {
        println!("fuzzing {target} for {secs} s");
        let found = self.found(target);
        let crashes = self.work.join("crashes").join(target);
        fs::create_dir_all(&found)?;
        fs::create_dir_all(&crashes)?;
        let mut command = self.command(target);
        command
            .arg(format!("-max_total_time={secs}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .args(["-timeout=10", "-print_final_stats=0", "-verbosity=0"])
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
        Ok(())
    }

    /// Adds to fuzz/corpus what reaches something that is not reached from there yet.
    fn keep(&self, target: &str) -> Result<()> {
        let kept = self.layout.repository().join("fuzz/corpus").join(target);
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

    /// Inputs that are there before a run; it does not write to them.
    fn inputs(&self, target: &str) -> Vec<PathBuf> {
        let corpus = self.layout.repository().join("fuzz/corpus").join(target);
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

/// Which target a golden vector is an input of, and its bytes.
fn seed(vector: &str) -> Option<(&'static str, Vec<u8>)> {
    let kind = vector
        .lines()
        .find_map(|line| line.strip_prefix("# kind: "))?;
    let target = match kind.trim() {
        "request" => "requests",
        "answer" => "answers",
        "flat" | "structured" => "inventories",
        "data_request" | "data_reply" => "data_frames",
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
    fn every_file_of_a_target_is_a_target() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let named = targets(&Layout::new(repository)).unwrap();
        for entry in fs::read_dir(repository.join("fuzz/targets")).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            assert!(
                path.is_dir() || named.iter().any(|target| target.name == stem),
                "{stem}"
            );
        }
    }
}
