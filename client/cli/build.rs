//! Puts the git commit into the program's version, if the program is built from a git checkout, and packs its relocations.

use std::{path::Path, process::Command};

fn main() {
    let commit = git(&["describe", "--always", "--tags", "--abbrev=12"]);
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let version = env!("CARGO_PKG_VERSION");
    println!("cargo::rustc-env=FABRICBIOS_VERSION={version} (commit {commit})");
    // Some 3 % of the program. glibc reads this form since 2.36, which Debian 12 has; an older linker says that it does not
    // know the word, and goes on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Each commit changes one of these files. With a missing file, cargo would run this script at each build.
    let names = ["HEAD", "logs/HEAD"].map(str::to_owned);
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in names.into_iter().chain(branch) {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", &name]);
        if let Some(path) = path.filter(|path| Path::new(path).is_file()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// The output of git; `None` if there is no git, or this is no checkout.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
