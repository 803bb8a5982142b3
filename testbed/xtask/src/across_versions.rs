//! `cargo xtask across-versions`: nodes and clients of this version and of an earlier one with each other
//! (`testbed/versions/across.py`).

use crate::cargo::{self, Profile, program};
use crate::checkout;
use crate::lab::say;
use anyhow::Result;
use clap::Args;
use fabricbios_testbed::Layout;
use fabricbios_testbed::requirements::{self, Consent, Need};
use std::process::ExitCode;

/// The arguments of `cargo xtask across-versions`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The earlier version
    commit: String,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    requirements::ensure(layout, &[Need::Build], Consent::Ask, &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    say(&format!("building {}", arguments.commit));
    let place = layout.target().join("earlier");
    let earlier = checkout::make(layout, &place, &arguments.commit)?;
    cargo::run(cargo::build_programs(&earlier, Profile::Debug)?)?;
    let mut command = program(layout, "python3", &["testbed/versions/across.py"]);
    command.args([&earlier, layout].map(|it| Profile::Debug.programs(it)));
    cargo::run(command)?;
    checkout::remove(layout, &place)?;
    Ok(ExitCode::SUCCESS)
}
