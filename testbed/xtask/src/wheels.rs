//! Programs from the Python package index, in fixed versions, each set in a virtual environment under the target directory.

use crate::cargo::{self, program};
use crate::lab::say;
use anyhow::{Result, ensure};
use fabricbios_testbed::{Layout, requirements::PIP_INSTALL};
use std::path::{Path, PathBuf};

/// Debian's Python, in the guests too; another Python that comes first in the path may lack what is needed.
pub(crate) const PYTHON: &str = "/usr/bin/python3";
/// The clients of other people that `suite_compare.py` runs: the first in its short form, all in full length.
const CLIENTS: [&str; 2] = [
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    "nixl-cu12==1.5.1",
];
/// Fails unless each of its arguments, such as `ruff==0.17.6`, is installed.
const HAS: &str = "import sys; from importlib.metadata import version
sys.exit(any(version(name) != number for name, number in (it.split('==') for it in sys.argv[1:])))";

/// Makes a virtual environment with these wheels, and without what they depend on, unless it is there.
pub(crate) fn install(layout: &Layout, place: &Path, wheels: &[&str]) -> Result<()> {
    let python = place.join("bin/python").display().to_string();
    let has = || {
        let mut asked = program(layout, &python, &[&["-c", HAS], wheels].concat());
        asked.output().is_ok_and(|it| it.status.success())
    };
    if has() {
        return Ok(());
    }
    environment(layout, place)?;
    // pip bounds each read, and not the whole.
    let within = ["600", &python];
    cargo::run(program(
        layout,
        "timeout",
        &[&within, &PIP_INSTALL[..], wheels].concat(),
    ))?;
    ensure!(has(), "{} lacks {}", place.display(), wheels.join(" "));
    Ok(())
}

/// Makes an empty virtual environment.
pub(crate) fn environment(layout: &Layout, place: &Path) -> Result<()> {
    let shown = place.display().to_string();
    cargo::run(program(layout, PYTHON, &["-m", "venv", "--clear", &shown]))
}

/// Where the clients are installed.
pub(crate) fn place_of_clients(layout: &Layout) -> PathBuf {
    layout.tools().join("clients")
}

/// Fetches the clients, `all` or those of the short form. One that cannot be had is named and left out: the suite looks
/// for what is there.
pub(crate) fn fetch_clients(layout: &Layout, all: bool) {
    for wheel in &CLIENTS[..if all { CLIENTS.len() } else { 1 }] {
        if let Err(why) = install(layout, &place_of_clients(layout), &[wheel]) {
            say(&format!("cannot fetch {wheel}: {why:#}"));
        }
    }
}
