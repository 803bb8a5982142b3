//! Other checkouts of the repository, below the target directory.

use crate::cargo::{self, program};
use anyhow::Result;
use fabricbios_testbed::Layout;
use std::path::Path;

/// Checks out `commit` at `place`, anew.
pub(crate) fn make(layout: &Layout, place: &Path, commit: &str) -> Result<Layout> {
    if place.exists() {
        remove(layout, place)?;
    }
    let words = ["worktree", "add", "--quiet", "--force", "--detach"];
    let mut command = program(layout, "git", &words);
    command.arg(place).arg(commit);
    cargo::run(command)?;
    Ok(layout.elsewhere(place))
}

/// Removes the checkout at `place` and what was built there.
pub(crate) fn remove(layout: &Layout, place: &Path) -> Result<()> {
    let mut command = program(layout, "git", &["worktree", "remove", "--force"]);
    command.arg(place);
    cargo::run(command)
}
