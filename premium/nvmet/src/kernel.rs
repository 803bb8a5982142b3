//! Whether the kernel's target is there to be spoken to.

use std::{fs, path::Path, time::Duration};

use fabricbios_kernfs::Sacrifice;
use fabricbios_lease::StepError;

/// A module that is loaded in less than this is loaded at all.
const LOAD_MAX: Duration = Duration::from_secs(20);

/// Loads the module, if that is what is missing. `Err` says what to do.
pub(super) fn make_ready(configfs: &Path) -> Result<(), StepError> {
    let is_there = || configfs.join("subsystems").is_dir();
    if is_there() {
        return Ok(());
    }
    let loaded = Sacrifice::new(["modprobe", "nvmet"]).run(LOAD_MAX, &|_line| ());
    if is_there() {
        return Ok(());
    }
    let why = loaded.err().map(|error| format!(" ({error})"));
    Err(advice(configfs, &why.unwrap_or_default()))
}

fn advice(configfs: &Path, why: &str) -> StepError {
    let place = configfs.parent().unwrap_or(configfs);
    let advice = if is_mounted(place) {
        format!("modprobe nvmet nvmet-tcp{why}")
    } else if place.is_dir() {
        "modprobe nvmet-tcp (or nvmet-rdma), then mount -t configfs none /sys/kernel/config"
            .to_owned()
    } else {
        "modprobe configfs, and nvmet-tcp or nvmet-rdma; a kernel without them (CONFIG_CONFIGFS_FS, \
         CONFIG_NVME_TARGET) serves blocks over UDP alone"
            .to_owned()
    };
    let shown = configfs.display();
    StepError::new("open nvmet", format_args!("{shown} is missing: {advice}"))
}

/// Whether a configfs is mounted there. `/proc/mounts`: device, place, type.
fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next().map(Path::new) == Some(place) && words.next() == Some("configfs")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_configfs_the_error_says_how_to_get_it() {
        let place = tempfile::tempdir().unwrap();
        let configfs = place.path().join("nvmet");
        let error = advice(&configfs, "").to_string();
        assert!(
            error.contains("mount -t configfs none /sys/kernel/config"),
            "{error}"
        );
        let error = advice(&configfs.join("nvmet"), "").to_string();
        assert!(error.contains("modprobe configfs"), "{error}");
        fs::create_dir_all(configfs.join("subsystems")).unwrap();
        make_ready(&configfs).unwrap();
    }
}
