//! Specifications for container engines (Container Device Interface): a file names the device nodes of a lease.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, PciFunction};
use serde_json::json;

use crate::records::{failed as failed_at, unless_gone};

/// Debian's podman 4.3.1 takes no newer version.
const VERSION: &str = "0.5.0";

/// Vendor and class of the devices.
const KIND: &str = "fabricbios/vfio";

/// The directory of specifications.
#[derive(Clone, Debug)]
pub(super) struct Cdi(PathBuf);

/// The name by which a container engine gets the device of a lease.
pub(super) fn device_name(lease: LeaseId) -> String {
    format!("{KIND}={lease}")
}

impl Cdi {
    pub(super) fn at(directory: &str) -> Self {
        Self(directory.into())
    }

    /// Only this user can read the file: only root's containers may have the device.
    pub(super) fn write(
        &self,
        lease: LeaseId,
        function: PciFunction,
        group: &Path,
    ) -> Result<(), StepError> {
        let spec = json!({
            "cdiVersion": VERSION,
            "kind": KIND,
            "devices": [{
                "name": lease.to_string(),
                "containerEdits": {
                    "env": [format!("FABRICBIOS_PCI_FUNCTION={function}")],
                    "deviceNodes": [{"path": "/dev/vfio/vfio"}, {"path": group}],
                },
            }],
        });
        let at = self.file(lease);
        // Engines read no file of this name.
        let new = at.with_extension("new");
        let written = fs::create_dir_all(&self.0)
            .and_then(|()| unless_gone(fs::remove_file(&new)))
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                options.open(&new)?.write_all(spec.to_string().as_bytes())?;
                fs::rename(&new, &at)
            });
        written.map_err(|error| failed_at("write CDI spec", &at, &error))
    }

    pub(super) fn exists(&self, lease: LeaseId) -> bool {
        self.file(lease).exists()
    }

    /// Success also if there is none.
    pub(super) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        let removed = [at.with_extension("new"), at.clone()]
            .iter()
            .try_for_each(|it| unless_gone(fs::remove_file(it)));
        removed.map_err(|error| failed_at("remove CDI spec", &at, &error))
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.0.join(format!("fabricbios-{lease}.json"))
    }
}
