//! `cargo xtask stand-ins`: loadable stand-ins of the vendors' GPU libraries, for tests without a GPU.

use crate::cargo::Scope;
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// The file that cargo builds, and the vendor's name for it.
const FILES: [(&str, &str); 4] = [
    ("libstand_in_nvml.so", "libnvidia-ml.so.1"),
    ("libstand_in_cuda.so", "libcuda.so.1"),
    ("libstand_in_hip.so", "libamdhip64.so.6"),
    ("stand-in-nvidia-smi", "bin/nvidia-smi"),
];

/// Builds the stand-ins and prints how to use them.
pub(crate) fn command(layout: &Layout) -> Result<ExitCode> {
    let place = build(layout, Scope::Needed)?;
    let place = place.display();
    println!("use them: LD_LIBRARY_PATH={place} PATH={place}/bin:$PATH fabricbiosd …");
    Ok(ExitCode::SUCCESS)
}

/// Builds the stand-ins; returns the directory with the libraries, and `bin/` in it.
pub(crate) fn build(layout: &Layout, scope: Scope) -> Result<PathBuf> {
    let packages = ["nvml", "cuda", "hip", "nvidia-smi"];
    let packages = packages.map(|it| format!("--package=fabricbios-stand-in-{it}"));
    let arguments: Vec<&str> = packages.iter().map(String::as_str).collect();
    scope.build(layout, &arguments)?;
    let place = layout.target().join("stand-ins");
    fs::create_dir_all(place.join("bin"))
        .with_context(|| format!("cannot make {}/bin", place.display()))?;
    for (built, name) in FILES {
        let (from, to) = (layout.target().join("debug").join(built), place.join(name));
        // A process may have the old file mapped, so the file is replaced, not overwritten.
        let new = to.with_extension("new");
        let copied = fs::copy(&from, &new)
            .and_then(|_| fs::set_permissions(&new, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&new, &to));
        copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(place)
}
