//! Checks that the kernel has the NVMe target, and loads the target's module.

use std::{fs, path::Path, time::Duration};

use fabricbios_helper::{Call, Caller, Failure, Supervisor};
use fabricbios_kernfs::{Mount, load_module, mounts};
use fabricbios_lease::StepError;
use fabricbios_wire::NvmeofTransport;
use serde::{Deserialize, Serialize};

/// Longest time for loading a module.
const LOAD_MAX: Duration = Duration::from_secs(20);

/// Loads the module of this name.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LoadModule(String);

impl Call for LoadModule {
    const NAME: &'static str = "modprobe";
    type Answer = ();

    fn make(self, _caller: &Caller) -> Result<(), Failure> {
        Ok(load_module(&self.0)?)
    }
}

/// Loads the module if it is missing. An error says what the operator can do.
pub(super) fn make_ready(configfs: &Path, supervisor: &Supervisor) -> Result<(), StepError> {
    let is_there = || configfs.join("subsystems").is_dir();
    if is_there() {
        return Ok(());
    }
    let loaded = supervisor.call(&LoadModule("nvmet".to_owned()), LOAD_MAX, &|_what| ());
    if is_there() {
        return Ok(());
    }
    let why = loaded.err().map(|error| format!(" ({error})"));
    Err(advice(configfs, &why.unwrap_or_default()))
}

/// Checks that the kernel has the target or that a start can load it. Loads nothing. An error says what the operator
/// can do.
pub(super) fn check(configfs: &Path, transport: NvmeofTransport) -> Result<(), StepError> {
    let has_target = configfs.join("subsystems").is_dir() || can_be_loaded("nvmet");
    if !has_target || !configfs.parent().is_some_and(is_mounted) {
        return Err(advice(configfs, ""));
    }
    let module = format!("nvmet-{transport}");
    match can_be_loaded(&module) {
        true => Ok(()),
        false => Err(StepError::new(
            "open nvmet",
            format_args!(
                "this kernel has no module {module}, without which it serves nothing over {transport}"
            ),
        )),
    }
}

/// Whether the kernel has the module or finds it on the disk.
fn can_be_loaded(module: &str) -> bool {
    let loaded = Path::new("/sys/module").join(module.replace('-', "_"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let lists = Path::new("/lib/modules").join(release.trim());
    let is_listed = |list: &str| {
        let text = fs::read_to_string(lists.join(list));
        text.is_ok_and(|it| it.contains(&format!("/{module}.ko")))
    };
    loaded.is_dir() || is_listed("modules.dep") || is_listed("modules.builtin")
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

fn is_mounted(place: &Path) -> bool {
    let is_there = |mount: &Mount| mount.place == place && mount.kind == "configfs";
    mounts().iter().any(is_there)
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
        std::fs::create_dir_all(configfs.join("subsystems")).unwrap();
        make_ready(&configfs, &Supervisor::of_threads(Vec::new())).unwrap();
    }
}
