//! The wheel of the Python package: built, installed with pip into an empty virtual environment, and tested there.

use crate::cargo::{self, Profile, Scope, calling_cargo, program};
use crate::wheels::{self, PYTHON};
use anyhow::{Context, Result};
use fabricbios_testbed::{Layout, Outcome};
use std::fs;
use std::path::{Path, PathBuf};

/// What builds and tests the wheel, with all that they depend on, in fixed versions.
const TOOLS: [&str; 6] = [
    "maturin==1.16.0",
    "pytest==9.2.0",
    "iniconfig==2.3.1",
    "packaging==26.4",
    "pluggy==1.7.0",
    "pygments==2.21.0",
];

/// The step of `cargo xtask test`. A host that cannot fetch the tools skips it.
pub(crate) fn step(layout: &Layout, scope: Scope) -> Result<Outcome> {
    if let Err(why) = install_tools(layout) {
        return Ok(Outcome::Skipped(format!("{why:#}")));
    }
    scope.build_programs(layout)?;
    let place = installed(layout, Profile::Debug)?;
    let python = place.join("bin/python").display().to_string();
    let within = ["--foreground", "--kill-after=10", "600", &python];
    let words = ["-m", "pytest", "-q", "client/python"];
    let mut tests = program(layout, "timeout", &[&within[..], &words].concat());
    tests
        .env("PYTHONPATH", packages(&tools(layout))?)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FABRICBIOS_BIN", Profile::Debug.programs(layout));
    cargo::run_beside("pip", tests)
}

fn tools(layout: &Layout) -> PathBuf {
    layout.tools().join("pip")
}

pub(crate) fn install_tools(layout: &Layout) -> Result<()> {
    let fetched = wheels::install(layout, &tools(layout), &TOOLS);
    fetched.with_context(|| format!("cannot fetch {}", TOOLS.join(" ")))
}

/// Builds the wheel and installs it into an empty virtual environment, which it returns.
pub(crate) fn installed(layout: &Layout, profile: Profile) -> Result<PathBuf> {
    let name = match profile {
        Profile::Debug => "dev",
        Profile::Release => "release",
    };
    let wheels = layout.target().join("wheels").join(name);
    fs::remove_dir_all(&wheels).ok();
    let (maturin, out) = (tools(layout).join("bin/maturin"), wheels.to_string_lossy());
    let words = [
        "build",
        "--quiet",
        "--manifest-path=client/python/Cargo.toml",
        "--interpreter",
        PYTHON,
        "--profile",
        name,
        "--out",
        &out,
    ];
    cargo::run(calling_cargo(layout, &maturin.to_string_lossy(), &words)?)?;
    let wheel = entry(&wheels, ".whl")?.display().to_string();
    let place = wheels.join("installed");
    wheels::environment(layout, &place)?;
    let python = place.join("bin/python").display().to_string();
    let words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        &wheel,
    ];
    cargo::run(program(layout, &python, &words))?;
    Ok(place)
}

/// The directory of the packages of a virtual environment.
fn packages(place: &Path) -> Result<PathBuf> {
    let found = entry(&place.join("lib"), "")?;
    Ok(found.join("site-packages"))
}

/// The first entry of a directory whose name ends so.
fn entry(folder: &Path, end: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.filter_map(|it| Some(it.ok()?.path()));
    let found = paths.find(|it| it.to_string_lossy().ends_with(end));
    found.with_context(|| format!("{} has no *{end}", folder.display()))
}
