//! Which of a device's nodes only users of leases may open, and whether the vendor's driver keeps them so.

use std::{collections::BTreeSet, fs, path::PathBuf};

use fabricbios_cgroup::nodes::{NodeError, Taken};
use fabricbios_lease::StepError;
use fabricbios_wire::GpuVendor;

use crate::{Device, management::Roots, record::Records};

/// The options that NVIDIA's driver was loaded with. nvidia-modprobe, which every user may run, resets the mode of the
/// nodes unless `ModifyDeviceFiles` is 0.
const PARAMETERS: &str = "driver/nvidia/params";
const HINT: &str = "load the module nvidia with NVreg_ModifyDeviceFiles=0";

/// Suffix of the files with the state of a device's nodes at the start.
const NODES: &str = ".nodes";

/// Why users without a lease may open the nodes of a device.
#[derive(Debug, thiserror::Error)]
pub enum NotOwned {
    /// The machine, or who changes nodes on it.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The machine: the leases of the device, whose users keep access, cannot be read.
    #[error(transparent)]
    Records(#[from] StepError),
    /// The machine: the options of the driver cannot be read.
    #[error("{0}: {HINT}")]
    Unread(#[from] fabricbios_kernfs::Error),
    /// The operator: the driver was loaded with an option that lets every user reset the nodes.
    #[error(
        "{} says ModifyDeviceFiles: {value}, so every user may have nvidia-modprobe put the mode of its nodes back: {HINT}",
        path.display()
    )]
    Resets {
        /// The file with the options.
        path: PathBuf,
        /// The value of the option; `nothing` if it is missing.
        value: String,
    },
}

/// Makes root the owner of the device's own nodes. Of the users who may open them now, only those in `users` still may.
///
/// # Errors
/// The nodes cannot be protected. They are as before the call.
pub(crate) fn take(
    records: &Records,
    device: &Device,
    users: &BTreeSet<u32>,
) -> Result<(), NotOwned> {
    let taken = taken(records, &device.uuid);
    let nodes = device.own_nodes();
    if device.vendor == GpuVendor::Nvidia
        && !nodes.is_empty()
        && let Err(error) = check_parameters(&Roots::real())
    {
        // An earlier run may have taken them.
        taken.give_back().ok();
        return Err(error);
    }
    Ok(taken.take(&nodes, users)?)
}

fn check_parameters(roots: &Roots) -> Result<(), NotOwned> {
    let text = roots.proc.read(PARAMETERS)?;
    let mut values = text
        .lines()
        .filter_map(|it| it.strip_prefix("ModifyDeviceFiles:"));
    match values.next().map(str::trim) {
        Some("0") => Ok(()),
        value => Err(NotOwned::Resets {
            path: roots.proc.root().join(PARAMETERS),
            value: value.unwrap_or("nothing").to_owned(),
        }),
    }
}

/// Restores the access to the nodes of devices that this node or an earlier run has taken.
pub(crate) fn give_back(records: &Records, is_kept: impl Fn(&str) -> bool) {
    let entries = fs::read_dir(records.directory()).into_iter().flatten();
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let uuids = names.filter_map(|it| Some(it.strip_suffix(NODES)?.to_owned()));
    for uuid in uuids.filter(|it| !is_kept(it)) {
        if let Err(error) = taken(records, &uuid).give_back() {
            tracing::error!(%error, uuid, "the device's nodes stay root's");
        }
    }
}

fn taken(records: &Records, uuid: &str) -> Taken {
    Taken {
        at: records.of_device(uuid, NODES),
        new: records.of_device(uuid, ".new"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidias_nodes_are_kept_only_if_nothing_puts_their_mode_back() {
        let place = tempfile::tempdir().unwrap();
        let roots = Roots::at(place.path());
        let parameters = |text: &str| {
            let at = place.path().join("proc/driver/nvidia");
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("params"), text).unwrap();
            check_parameters(&roots)
        };
        let unread = check_parameters(&roots).unwrap_err().to_string();
        assert!(unread.contains("NVreg_Modify"), "{unread}");
        parameters("Mobile: 0\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n").unwrap();
        for text in ["ModifyDeviceFiles: 1\n", "DeviceFileMode: 438\n", ""] {
            let why = parameters(text).unwrap_err().to_string();
            assert!(why.contains("nvidia-modprobe"), "{why}");
        }
    }
}
