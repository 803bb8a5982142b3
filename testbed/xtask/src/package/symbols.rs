//! The packages of debug symbols. cargo-deb makes them without what Debian has in such packages: the documentation is that
//! of the program's package, which must be installed in the same version.

use super::Built;
use crate::cargo::{self, program};
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Packs the debug symbols of `package` at `path` again, as Debian's tools would have made them.
pub(super) fn complete(layout: &Layout, built: &Built, package: &str, path: &Path) -> Result<()> {
    let unpacked = built.target.join("symbols");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    let mut command = program(layout, "dpkg-deb", &["--raw-extract"]);
    command.arg(path).arg(&unpacked);
    cargo::run(command)?;
    let control = unpacked.join("DEBIAN/control");
    let text = fs::read_to_string(&control).with_context(|| control.display().to_string())?;
    let text = text.replace("\nPriority: extra\n", "\nPriority: optional\n");
    fs::write(&control, text.replace("\nRecommends: ", "\nDepends: "))?;
    let documentation = unpacked.join("usr/share/doc");
    fs::create_dir_all(&documentation)?;
    symlink(package, documentation.join(format!("{package}-dbgsym")))?;
    for directory in ["usr/share", "usr/share/doc"] {
        fs::set_permissions(unpacked.join(directory), Permissions::from_mode(0o755))?;
    }
    let words = ["--root-owner-group", "--build"];
    let mut command = built.with(program(layout, "dpkg-deb", &words));
    command.arg(&unpacked).arg(path);
    cargo::run(command)?;
    fs::remove_dir_all(&unpacked)?;
    Ok(())
}
