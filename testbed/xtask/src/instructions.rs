//! Instructions of the hot paths, counted by valgrind's callgrind and compared with committed counts: unlike times they are the
//! same on a busy machine. The programs are those of the other steps, built for debugging, so that the step builds nothing more.

use crate::cargo::{self, Profile, Scope, program};
use crate::lab::say;
use anyhow::{Context, Result};
use fabricbios_testbed::{Layout, Outcome};
use std::collections::BTreeMap;
use std::process::Command;

/// The committed counts, by compiler.
const COUNTS: &str = "bench/instructions.json";
/// The subcommand of the benches, and where callgrind collects in it.
const COUNTED: [&str; 2] = ["instructions", "--toggle-collect=*instructions*counted*"];
/// The paths, as that subcommand names them.
const PATHS: [&str; 8] = [
    "datagram",
    "grant",
    "tick",
    "end",
    "encode-messages",
    "decode-messages",
    "encode-record",
    "decode-record",
];
/// More than this share of the committed count fails.
const MARGIN: f64 = 1.25;

/// The counts of a compiler, by path.
type Counts = BTreeMap<String, u64>;

/// The step of `cargo xtask test`.
pub(crate) fn step(layout: &Layout, scope: Scope) -> Result<Outcome> {
    if !is_installed() {
        return Ok(Outcome::Skipped(
            "valgrind (Debian package valgrind)".to_owned(),
        ));
    }
    let compiler = compiler(layout)?;
    let known = read(layout)?;
    let Some(known) = known.get(&compiler) else {
        let advice = "`cargo xtask bench --instructions` adds them";
        return Ok(Outcome::Skipped(format!(
            "no counts of {compiler}; {advice}"
        )));
    };
    let counts = count(layout, scope)?;
    Ok(match compare(known, &counts) {
        None => Outcome::Passed,
        Some(why) => Outcome::Failed(why),
    })
}

/// Counts, and makes these the committed counts of this compiler.
pub(crate) fn write(layout: &Layout) -> Result<()> {
    let mut all = read(layout)?;
    all.insert(compiler(layout)?, count(layout, Scope::Needed)?);
    let text = serde_json::to_string_pretty(&all)? + "\n";
    std::fs::write(layout.repository().join(COUNTS), text).context(COUNTS)?;
    say(&format!("{COUNTS} has these counts"));
    Ok(())
}

fn is_installed() -> bool {
    let asked = Command::new("valgrind").arg("--version").output();
    asked.is_ok_and(|it| it.status.success())
}

fn compiler(layout: &Layout) -> Result<String> {
    let told = cargo::output(program(layout, "rustc", &["--version"]))?;
    let mut words = told.split_whitespace().take(2);
    Ok(format!(
        "{} {}",
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default()
    ))
}

fn read(layout: &Layout) -> Result<BTreeMap<String, Counts>> {
    let text = std::fs::read_to_string(layout.repository().join(COUNTS)).context(COUNTS)?;
    serde_json::from_str(&text).context(COUNTS)
}

fn count(layout: &Layout, scope: Scope) -> Result<Counts> {
    scope.build(layout, &["--bins", "-p", "fabricbios-bench"])?;
    let bench = Profile::Debug.programs(layout).join("fabricbios-bench");
    let mut counts = Counts::new();
    for path in PATHS {
        let [subcommand, where_] = COUNTED;
        let words = ["--tool=callgrind", "--callgrind-out-file=/dev/null", where_];
        let mut command = program(layout, "valgrind", &words);
        command.arg(&bench).args([subcommand, path]);
        let ran = command.output().context("run valgrind")?;
        let told = String::from_utf8_lossy(&ran.stderr);
        let collected = collected(&told).filter(|_| ran.status.success());
        let collected = collected.with_context(|| format!("{path} is not counted: {told}"))?;
        println!("{path}: {collected} instructions");
        counts.insert(path.to_owned(), collected);
    }
    Ok(counts)
}

/// The number in callgrind's line `==1== Collected : 123`.
fn collected(told: &str) -> Option<u64> {
    let line = told
        .lines()
        .find_map(|line| line.split_once("Collected : "))?;
    line.1.trim().parse().ok().filter(|count| *count > 0)
}

/// Why these counts fail; `None` if none of them does.
fn compare(known: &Counts, counts: &Counts) -> Option<String> {
    let wrong = counts.iter().filter_map(|(path, count)| {
        let Some(before) = known.get(path) else {
            return Some(format!("{path} has no committed count"));
        };
        let times = *count as f64 / *before as f64;
        (times > MARGIN)
            .then(|| format!("{path} takes {count} instructions, {times:.2} times {before}"))
    });
    let wrong: Vec<String> = wrong.collect();
    (!wrong.is_empty()).then(|| {
        let advice = "make it cheaper, or say in the commit why it costs more, with the counts of `cargo xtask bench --instructions`";
        format!("{}; {advice}", wrong.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(numbers: &[(&str, u64)]) -> Counts {
        { numbers.iter() }
            .map(|(path, count)| ((*path).to_owned(), *count))
            .collect()
    }

    #[test]
    fn more_than_a_quarter_more_fails() {
        let known = counts(&[("a", 100), ("b", 100)]);
        assert_eq!(compare(&known, &counts(&[("a", 125), ("b", 10)])), None);
        let why = compare(&known, &counts(&[("a", 126), ("c", 1)])).unwrap();
        assert!(
            why.contains("a takes 126") && why.contains("c has no"),
            "{why}"
        );
    }

    #[test]
    fn a_run_that_counted_nothing_is_no_count() {
        assert_eq!(
            collected("==7== Events    : Ir\n==7== Collected : 123\n"),
            Some(123)
        );
        assert_eq!(collected("==7== Collected : 0\n"), None);
        assert_eq!(collected("valgrind: no such program"), None);
    }

    #[test]
    fn each_path_has_a_count_of_each_compiler() {
        let all = read(&Layout::new(
            &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        ))
        .unwrap();
        assert!(!all.is_empty());
        for (compiler, counts) in all {
            assert!(
                counts.keys().eq(PATHS
                    .iter()
                    .copied()
                    .collect::<std::collections::BTreeSet<_>>()),
                "{compiler}"
            );
        }
    }
}
