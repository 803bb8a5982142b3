//! The kernel of the guests: Debian's newest 6.12, fetched and unpacked once, never installed.

use crate::apt::Apt;
use crate::modules;
use crate::process::{capture, run_logged};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel series of the lab: its `rdma_rxe` has memory windows, and its nvmet is complete.
/// `amd64` follows the release directly, because the cloud flavour has no soft-RoCE.
const PACKAGES: &str = r"^linux-image-6\.12\.[0-9]+(\+[a-z0-9]+)?-amd64-unsigned$";

/// Modules of hardware that no guest has, more than half of all modules. They are not unpacked.
const UNUSED: [&str; 9] = [
    "sound",
    "drivers/gpu",
    "drivers/media",
    "drivers/net/wireless",
    "drivers/staging",
    "drivers/iio",
    "drivers/hid",
    "drivers/input",
    "drivers/usb",
];

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// For example `6.12.117+deb12-amd64`.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// The guest's `/lib/modules/RELEASE`.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// The newest complete kernel under `directory`; interrupted fetches leave none.
    pub(crate) fn find(directory: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(directory).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let release = newest(names.filter(|name| version(name).is_some()))?;
        let place = directory.join(&release);
        Some(Self {
            image: place.join("vmlinuz"),
            modules: place.join("lib/modules").join(&release),
            release,
        })
    }

    /// Fetches the newest kernel that `apt` offers. It appears under `directory` by one rename.
    pub(crate) fn fetch(directory: &Path, apt: &Apt, log: &Path) -> Result<Self> {
        let package = newest(apt.names(PACKAGES)?.into_iter())
            .context("Debian's archive offers no linux-image-6.12.*-amd64-unsigned package")?;
        std::fs::create_dir_all(directory)?;
        let building = tempfile::Builder::new()
            .prefix(".building-")
            .tempdir_in(directory)?;
        let package = apt.download(&package, building.path())?;
        let unpacked = building.path().join("unpacked");
        run_logged(
            Command::new("dpkg-deb")
                .arg("-x")
                .args([&package, &unpacked]),
            log,
        )?;
        let release = arrange(building.path(), &unpacked, log)?;
        std::fs::rename(building.path().join("kernel"), directory.join(&release))
            .with_context(|| format!("cannot put the kernel under {}", directory.display()))?;
        Self::find(directory).context("the kernel is gone right after it was unpacked")
    }

    /// The modules that a guest's first file system carries, in the order to load them.
    pub(crate) fn boot_modules(&self) -> Result<Vec<PathBuf>> {
        let path = self.modules.join("modules.dep");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(modules::load_order(&text)
            .iter()
            .map(|module| self.modules.join(module))
            .collect())
    }
}

/// Makes `kernel/` in `building` out of the unpacked package: image, decompressed modules, and
/// their dependency lists. Returns the kernel's release.
fn arrange(building: &Path, unpacked: &Path, log: &Path) -> Result<String> {
    let modules = ["usr/lib/modules", "lib/modules"].map(|place| unpacked.join(place));
    let modules = modules.into_iter().find(|place| place.is_dir());
    let modules = modules.context("the kernel package has no modules")?;
    let release = only_entry(&modules)?;
    let kernel = building.join("kernel");
    std::fs::create_dir_all(kernel.join("lib"))?;
    let tree = modules.join(&release);
    for unused in UNUSED {
        let place = tree.join("kernel").join(unused);
        if place.exists() {
            std::fs::remove_dir_all(&place)?;
        }
    }
    // Decompress once here instead of at each load in the guest, where it would be emulated.
    let packed = capture(Command::new("find").arg(&tree).args(["-name", "*.ko.xz"]))?;
    for some in packed.lines().collect::<Vec<_>>().chunks(200) {
        run_logged(Command::new("xz").args(["-d", "-T0", "--"]).args(some), log)?;
    }
    std::fs::rename(&modules, kernel.join("lib/modules"))?;
    let config = unpacked.join("boot").join(format!("config-{release}"));
    // External tests look up the kernel's build configuration.
    std::fs::rename(
        &config,
        kernel.join("lib/modules").join(&release).join("config"),
    )
    .with_context(|| format!("the kernel package has no boot/config-{release}"))?;
    let image = unpacked.join("boot").join(format!("vmlinuz-{release}"));
    std::fs::rename(&image, kernel.join("vmlinuz"))
        .with_context(|| format!("the kernel package has no boot/vmlinuz-{release}"))?;
    run_logged(
        Command::new("depmod").arg("-b").arg(&kernel).arg(&release),
        log,
    )?;
    Ok(release)
}

fn only_entry(directory: &Path) -> Result<String> {
    let mut entries = std::fs::read_dir(directory)?;
    let entry = entries
        .next()
        .with_context(|| format!("{} is empty", directory.display()))??;
    let name = entry.file_name();
    name.into_string()
        .map_err(|name| anyhow::anyhow!("{} is not a kernel release", name.display()))
}

fn newest(names: impl Iterator<Item = String>) -> Option<String> {
    names.max_by_key(|name| version(name))
}

/// The three numbers in `linux-image-6.12.117+deb12-amd64-unsigned` or `6.12.117+deb12-amd64`.
fn version(name: &str) -> Option<(u32, u32, u32)> {
    let name = name.strip_prefix("linux-image-").unwrap_or(name);
    let end = name
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(name.len());
    let mut numbers = name[..end].split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_by_number_and_not_by_letter() {
        let offered = [
            "linux-image-6.12.95+deb12-amd64-unsigned",
            "linux-image-6.12.117+deb12-amd64-unsigned",
            "linux-image-6.12.9+bpo-amd64-unsigned",
        ];
        let newest = newest(offered.iter().map(|name| (*name).to_owned()));
        assert_eq!(
            newest.as_deref(),
            Some("linux-image-6.12.117+deb12-amd64-unsigned")
        );
    }

    #[test]
    fn an_interrupted_build_is_not_a_kernel() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join(".building-x/kernel")).unwrap();
        assert!(Kernel::find(place.path()).is_none());
        std::fs::create_dir(place.path().join("6.12.95+deb12-amd64")).unwrap();
        let found = Kernel::find(place.path()).unwrap();
        assert_eq!(found.release, "6.12.95+deb12-amd64");
        assert_eq!(
            found.modules,
            place
                .path()
                .join("6.12.95+deb12-amd64/lib/modules/6.12.95+deb12-amd64")
        );
    }
}
