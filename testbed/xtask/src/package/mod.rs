//! `cargo xtask package`: Debian packages of node, client and scheduler, from the locked tree.
//!
//! cargo-deb packs what `[package.metadata.deb]` of each package lists; what is made for it (man pages, completions, licences,
//! lists of crates, changelogs) is in `generated/` beside the programs.

mod crates;
mod symbols;

use crate::cargo::{self, calling_cargo, cargo, output, program};
use crate::checkout;
use crate::lab::say;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fabricbios_testbed::Layout;
use fabricbios_testbed::requirements::{self, Consent, Need};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The Debian packages, and the package of this checkout that each is made from.
const PACKAGES: [(&str, &str); 3] = [
    ("fabricbios-node", "fabricbios-node"),
    ("fabricbios-client", "fabricbios-cli"),
    ("fabricbios-scheduler", "fabricbios-scheduler"),
];
const MAINTAINER: &str = "The fabricBIOS authors <maintainers@fabricbios.org>";

/// The arguments of `cargo xtask package`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How the programs are built: release for use, dev for tests
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Where the packages go [default: target/package/PROFILE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Install what is missing without asking
    #[arg(long)]
    yes: bool,
    /// Check the packages with lintian, build them again from another directory, and compare the bytes
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Profile {
    #[default]
    Release,
    Dev,
}

impl Profile {
    /// As cargo names the profile, and its directory.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Release => ("release", "release"),
            Self::Dev => ("dev", "debug"),
        }
    }
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let consent = match arguments.yes {
        true => Consent::Given,
        false => Consent::Ask,
    };
    requirements::ensure(layout, &[Need::Package], consent, &say)?;
    let profile = arguments.profile;
    let own = layout.target().join("package").join(profile.names().0);
    let out = arguments.out.as_ref().unwrap_or(&own);
    let made = make(layout, profile, out)?;
    for path in &made {
        println!("{}", path.display());
    }
    if arguments.check {
        lint(layout, &made)?;
        same_from_another_directory(layout, profile, &made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the packages in the directory `out`, and returns their paths.
fn make(layout: &Layout, profile: Profile, out: &Path) -> Result<Vec<PathBuf>> {
    let (name, directory) = profile.names();
    let built = Built::of(layout)?;
    say("building the programs");
    let words = ["build", "--locked", "--bins", "--profile", name];
    let packages: Vec<&str> = PACKAGES.iter().flat_map(|(_, it)| ["-p", it]).collect();
    cargo::run(built.with(cargo(layout, &[&words[..], &packages].concat())?))?;
    let generated = built.target.join(directory).join("generated");
    generate(layout, &built, &generated)?;
    fs::create_dir_all(out)?;
    let mut made = Vec::new();
    for (package, from) in PACKAGES {
        say(&format!("packing {package}"));
        let mut words = vec![
            "deb",
            "--quiet",
            "--locked",
            "--no-build",
            "--deb-revision=",
        ];
        words.extend(["--maintainer", MAINTAINER, "--profile", name, "-p", from]);
        if matches!(profile, Profile::Release) {
            words.push("--dbgsym");
        }
        let mut command = built.with(calling_cargo(layout, "cargo", &words)?);
        command.arg("--output").arg(out);
        for path in output(command)?.lines().map(PathBuf::from) {
            if path.extension().is_some_and(|it| it == "ddeb") {
                symbols::complete(layout, &built, package, &path)?;
            }
            made.push(path);
        }
    }
    Ok(made)
}

/// How the programs are built so that no path of this machine is in them.
struct Built {
    target: PathBuf,
    /// What stands for what: the checkout, and cargo's downloads.
    paths: [(PathBuf, &'static str); 2],
    /// Unix seconds of the commit.
    epoch: String,
}

impl Built {
    fn of(layout: &Layout) -> Result<Self> {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
        let home = home.context("neither CARGO_HOME nor a home directory")?;
        let epoch = output(program(layout, "git", &["log", "-1", "--format=%ct"]))?;
        Ok(Self {
            target: layout.target().join("package"),
            paths: [
                (layout.repository().canonicalize()?, "/usr/src/fabricbios"),
                (home, "/usr/src/cargo"),
            ],
            epoch: epoch.trim().to_owned(),
        })
    }

    /// Sets the environment of a command that builds or packs.
    fn with(&self, mut command: Command) -> Command {
        let all = |flag: &str| {
            let each = self.paths.iter();
            let each = each.map(|(from, to)| format!("{flag}={}={to}", from.display()));
            each.collect::<Vec<_>>()
        };
        command
            .env("CARGO_TARGET_DIR", &self.target)
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                all("--remap-path-prefix").join("\x1f"),
            )
            .env("CFLAGS", all("-ffile-prefix-map").join(" "))
            .env("SOURCE_DATE_EPOCH", &self.epoch);
        command
    }
}

/// Makes everything beside the programs that the packages have.
fn generate(layout: &Layout, built: &Built, at: &Path) -> Result<()> {
    if at.exists() {
        fs::remove_dir_all(at)?;
    }
    fs::create_dir_all(at)?;
    say("making man pages and completions");
    let words = [
        "run",
        "--quiet",
        "--locked",
        "-p",
        "fabricbios-manuals",
        "--",
    ];
    let mut manuals = built.with(cargo(layout, &words)?);
    manuals.arg(at);
    cargo::run(manuals)?;
    for page in fs::read_dir(at.join("man"))? {
        compress(layout, &page?.path())?;
    }
    for (package, from) in PACKAGES {
        say(&format!("listing the crates of {package}"));
        let at = at.join(package);
        fs::create_dir_all(&at)?;
        let crates = crates::Crates::of(layout, from)?;
        let write = |name: &str, text: &str| {
            let path = at.join(name);
            fs::write(&path, text)?;
            compress(layout, &path)
        };
        write("third-party.txt", &crates.licences(package)?)?;
        write("sbom.cdx.json", &crates.sbom()?)?;
        let version = env!("CARGO_PKG_VERSION");
        let date = output(program(
            layout,
            "date",
            &["--utc", "-R", "--date", &format!("@{}", built.epoch)],
        ))?;
        let changes = format!(
            "{package} ({version}) unstable; urgency=medium\n\n  * Built from the sources of fabricBIOS.\n\n -- {MAINTAINER}  {date}"
        );
        write("changelog", &changes)?;
    }
    Ok(())
}

/// Compresses a file as Debian does: the same bytes at any time.
fn compress(layout: &Layout, path: &Path) -> Result<()> {
    let mut command = program(layout, "gzip", &["-9nf"]);
    command.arg(path);
    cargo::run(command)
}

fn lint(layout: &Layout, packages: &[PathBuf]) -> Result<()> {
    say("lintian");
    let mut command = program(layout, "lintian", &["--fail-on", "error,warning"]);
    command.args(packages);
    cargo::run(command)
}

/// Makes the packages again from a checkout elsewhere, and compares their bytes with those of `first`.
fn same_from_another_directory(layout: &Layout, profile: Profile, first: &[PathBuf]) -> Result<()> {
    let changed = output(program(layout, "git", &["status", "--porcelain"]))?;
    if !changed.is_empty() {
        bail!(
            "the second build is that of the last commit, and there are changes that are not committed:\n{changed}"
        );
    }
    let place = layout.target().join("package-elsewhere");
    let shown = place.display().to_string();
    let other = checkout::make(layout, &place, "HEAD")?;
    let second = make(&other, profile, &place.join("packages"));
    let compared = second.and_then(|second| {
        for (one, other) in first.iter().zip(&second) {
            if fs::read(one)? != fs::read(other)? {
                bail!(
                    "{} and {} differ; diffoscope shows where",
                    one.display(),
                    other.display()
                );
            }
            println!("{} is the same from {shown}", one.display());
        }
        match first.len() == second.len() {
            true => Ok(()),
            false => bail!(
                "{} packages, and {} from {shown}",
                first.len(),
                second.len()
            ),
        }
    });
    if compared.is_ok() {
        checkout::remove(layout, &place)?;
    }
    compared
}
