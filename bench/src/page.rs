//! The page of a node for people, while many leases live, as somebody who has logged in gets it: its bytes, and the time until
//! it is there.

use std::path::PathBuf;

use clap::Args;

use crate::pages::Watched;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leases that live
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// Times that each page is asked for
    #[arg(long, default_value_t = 30)]
    times: u32,
    /// Directory of the state
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let watched = Watched::start(&options.dir, options.leases, 0)?;
    let of = format!("{} leases", options.leases);
    for (name, path) in [("page/overview", "/"), ("page/leases", "/leases")] {
        watched.pages.measure(name, path, &of, options.times)?;
    }
    Ok(())
}
