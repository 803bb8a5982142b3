//! The GPUs that the operator names.

use std::str::FromStr;

use anyhow::bail;
use fabricbios_gpu::Device;

use crate::kinds::settings::values::BadValue;

/// GPUs that `--gpus` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedGpus {
    /// All GPUs that work.
    All,
    /// The GPUs with these UUIDs.
    These(Vec<String>),
}

impl FromStr for WantedGpus {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if text == "all" {
            return Ok(Self::All);
        }
        let uuids: Vec<String> = text.split(',').map(|it| it.trim().to_owned()).collect();
        match uuids.iter().all(|it| !it.is_empty()) {
            true => Ok(Self::These(uuids)),
            false => Err(BadValue::Form(
                "`all` is expected, or UUIDs with commas between",
                "GPU-8f1c…,MIG-2b60…",
            )),
        }
    }
}

impl WantedGpus {
    /// The devices on offer. Of a device that is divided (MIG), only its partitions are on offer.
    ///
    /// # Errors
    /// A named device does not exist, cannot be leased, or is named twice.
    pub(super) fn of(&self, found: &[Device]) -> anyhow::Result<Vec<Device>> {
        let known = || {
            let uuids: Vec<&str> = found.iter().map(|it| &*it.uuid).collect();
            match uuids.is_empty() {
                true => "the vendors' libraries know none".to_owned(),
                false => format!("there are {}", uuids.join(", ")),
            }
        };
        let mut devices: Vec<Device> = Vec::new();
        match self {
            Self::All => devices.extend(found.iter().filter(|it| !it.has_partitions).cloned()),
            Self::These(uuids) => {
                for uuid in uuids {
                    let Some(device) = found.iter().find(|it| it.uuid == *uuid) else {
                        bail!("--gpus {uuid}: there is no such GPU; {}", known());
                    };
                    if device.has_partitions {
                        bail!("--gpus {uuid}: this GPU is divided into partitions: name those");
                    }
                    if devices.contains(device) {
                        bail!("--gpus {uuid}: this GPU is named twice");
                    }
                    devices.push(device.clone());
                }
            }
        }
        if devices.is_empty() {
            tracing::warn!("--gpus: nothing is offered: {}", known());
        }
        Ok(devices)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use fabricbios_gpu::Health;
    use fabricbios_wire::GpuVendor;

    use super::*;

    pub(in crate::kinds::gpu) fn device(
        uuid: &str,
        partition_of: Option<&str>,
        has_partitions: bool,
    ) -> Device {
        Device {
            uuid: uuid.into(),
            vendor: GpuVendor::Nvidia,
            name: "a GPU".into(),
            pci: None,
            vram_bytes: 1 << 30,
            compute_units: 1,
            compute_slices: 1,
            partition_of: partition_of.map(Into::into),
            has_partitions,
            nodes: Vec::new(),
            visible: uuid.into(),
            health: Health::Good,
        }
    }

    /// One GPU without partitions, and one with two.
    fn found() -> Vec<Device> {
        vec![
            device("GPU-1", None, false),
            device("GPU-2", None, true),
            device("MIG-1", Some("GPU-2"), false),
            device("MIG-2", Some("GPU-2"), false),
        ]
    }

    fn of(words: &str) -> anyhow::Result<Vec<String>> {
        let wanted: WantedGpus = words.parse()?;
        let devices = wanted.of(&found())?;
        Ok(devices.into_iter().map(|it| it.uuid).collect())
    }

    fn refused(words: &str) -> String {
        of(words).unwrap_err().to_string()
    }

    #[test]
    fn of_a_divided_gpu_the_partitions_are_offered() {
        assert_eq!(of("all").unwrap(), ["GPU-1", "MIG-1", "MIG-2"]);
        assert_eq!(of("MIG-2, GPU-1").unwrap(), ["MIG-2", "GPU-1"]);
        let why = refused("GPU-2");
        assert!(why.contains("name those"), "{why}");
    }

    #[test]
    fn what_cannot_be_offered_is_named_with_what_can() {
        let why = refused("GPU-1,GPU-3");
        assert!(
            why.starts_with("--gpus GPU-3: ") && why.ends_with("GPU-1, GPU-2, MIG-1, MIG-2"),
            "{why}"
        );
        let why = refused("MIG-1,GPU-1,MIG-1");
        assert_eq!(why, "--gpus MIG-1: this GPU is named twice");
        refused("GPU-1,,MIG-1");
    }

    #[test]
    fn all_of_none_is_nothing_and_no_error() {
        assert_eq!(WantedGpus::All.of(&[]).unwrap(), []);
    }
}
