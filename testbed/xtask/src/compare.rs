//! `cargo xtask compare`: what clients that nobody here wrote get when the memory that they use is somebody else's, on a lease
//! and on what else they are used with.

use crate::cargo::{self, Profile, Scope};
use crate::lab::{BootArguments, say};
use crate::suites::Suites;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fabricbios_testbed::requirements::Need;
use fabricbios_testbed::{Layout, Outcome, Prelude, suite};
use std::process::ExitCode;

const SUITE: &str = "suite_compare";
const PAGE: &str = "docs/comparison.md";
/// The lines around the results, in the output of the suite and in the page.
const MARKS: [&str; 2] = ["<!-- results -->\n", "<!-- end of results -->\n"];

/// The arguments of `cargo xtask compare`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Write the results into docs/comparison.md
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    boot: BootArguments,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let needs = [Need::Guest, Need::Build, Need::Clients];
    let lab = arguments.boot.prepare(layout, &needs, &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    let suites = Suites::discover(layout)?;
    let mut kinds = suites.kinds();
    let compared = kinds.find(|kind| kind.name() == SUITE);
    let compared = compared.with_context(|| format!("there is no {SUITE}.py"))?;
    let mut job = compared.job(true, layout, Scope::Needed)?;
    job.preludes.push(Prelude::SoftRoce);
    let ended = lab.run(&job)?;
    match suite::outcome(&ended) {
        Outcome::Passed => {}
        Outcome::Skipped(why) | Outcome::Failed(why) | Outcome::Flaky(why) => bail!("{why}"),
    }
    if arguments.write {
        let path = layout.repository().join(PAGE);
        let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
        std::fs::write(&path, written(&page, &ended.output)?)?;
        say(&format!("{PAGE} has these results"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The page with the results of this output.
fn written(page: &str, output: &str) -> Result<String> {
    let [before, _, after] = parts(page).context("docs/comparison.md")?;
    let [_, results, _] = parts(output).context("the output of the suite")?;
    ensure!(results.contains("\n| "), "the results have no table");
    Ok([before, MARKS[0], results, MARKS[1], after].concat())
}

/// The text before the results, the results, and the text after them.
fn parts(text: &str) -> Result<[&str; 3]> {
    let split = || {
        let (before, rest) = text.split_once(MARKS[0])?;
        let (results, after) = rest.split_once(MARKS[1])?;
        Some([before, results, after])
    };
    split().with_context(|| format!("no lines {} and {}", MARKS[0].trim(), MARKS[1].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_results_of_the_page_change() {
        let page = "# A\n\n<!-- results -->\nold\n<!-- end of results -->\n\nB\n";
        let output = "ok a\n<!-- results -->\nnew\n\n| a | b |\n<!-- end of results -->\nx: 1 ok, 0 failed\n";
        let expected = "# A\n\n<!-- results -->\nnew\n\n| a | b |\n<!-- end of results -->\n\nB\n";
        assert_eq!(written(page, output).unwrap(), expected);
        assert!(written(page, "ok a\n").is_err());
        assert!(written("# A\n", output).is_err());
        assert!(written(page, page).is_err());
    }

    #[test]
    fn the_page_has_the_marks() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let [_, results, _] = parts(&page).unwrap();
        assert!(results.contains("| case |"), "{results}");
    }
}
