//! Specifications for container engines (Container Device Interface): a file names the device nodes of a lease.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use serde_json::json;

use crate::{
    Device,
    record::{failed, remove_file},
};

/// Debian's podman 4.3.1 takes no newer version.
const VERSION: &str = "0.5.0";

/// Vendor and class of the devices.
const KIND: &str = "fabricbios/gpu";

/// The name by which a container engine gets the device of a lease.
pub(crate) fn device_name(lease: LeaseId) -> String {
    format!("{KIND}={lease}")
}

/// Writes the specification. Only root can read it: only root's containers may have the device.
pub(crate) fn write(directory: &Path, lease: LeaseId, device: &Device) -> Result<(), StepError> {
    let (variable, value) = device.environment();
    let nodes: Vec<_> = device
        .nodes
        .iter()
        .map(|node| json!({"path": node.path}))
        .collect();
    let spec = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{
            "name": lease.to_string(),
            "containerEdits": {
                "env": [format!("{variable}={value}")],
                "deviceNodes": nodes,
            },
        }],
    });
    let at = file(directory, lease);
    // Engines read no file of this name.
    let new = at.with_extension("new");
    remove_file("write cdi", &new)?;
    let written = fs::create_dir_all(directory).and_then(|()| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&new)?.write_all(spec.to_string().as_bytes())?;
        fs::rename(&new, &at)
    });
    written.map_err(|error| failed("write cdi", &at, &error))
}

/// Success also if there is none.
pub(crate) fn remove(directory: &Path, lease: LeaseId) -> Result<(), StepError> {
    let at = file(directory, lease);
    remove_file("remove cdi", &at.with_extension("new"))?;
    remove_file("remove cdi", &at)
}

fn file(directory: &Path, lease: LeaseId) -> PathBuf {
    directory.join(format!("fabricbios-{lease}.json"))
}
