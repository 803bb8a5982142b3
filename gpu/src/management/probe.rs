//! Discovery.

use std::time::Duration;

use fabricbios_helper::{Call, Caller, Failure, Supervisor};
use serde::{Deserialize, Serialize};

use super::{Roots, amd, nvidia};
use crate::{Device, Libraries};

/// Finds the devices of each vendor whose management library is named in `libraries`. The daemon uses [`discover`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The libraries to ask: `nvml` for NVIDIA's devices, `hip` for AMD's.
    pub libraries: Libraries,
}

/// The result of discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// The devices, each before its partitions.
    pub devices: Vec<Device>,
    /// Facts about a device that could not be read, or that prevent its use; for people.
    pub warnings: Vec<String>,
    /// Why a vendor has no devices, if that is no fault; for people.
    pub notes: Vec<String>,
}

impl Call for Probe {
    const NAME: &'static str = "gpu-probe";
    type Answer = Probed;

    fn make(self, caller: &Caller) -> Result<Probed, Failure> {
        let mut probed = Probed::default();
        let roots = Roots::real();
        if !self.libraries.nvml.is_empty() {
            caller.progress("NVML")?;
            nvidia::probe(&self.libraries, &roots, &mut probed);
        }
        if !self.libraries.hip.is_empty() {
            caller.progress("HIP")?;
            amd::probe(&self.libraries, &roots, &mut probed);
        }
        Ok(probed)
    }
}

/// Finds all devices, in one helper process for each vendor. A library that crashes, or is silent for `silence_max`,
/// costs only its own devices, and a warning.
#[must_use]
pub fn discover(supervisor: &Supervisor, libraries: &Libraries, silence_max: Duration) -> Probed {
    let none = || Libraries {
        nvml: Vec::new(),
        cuda: Vec::new(),
        hip: Vec::new(),
    };
    let nvidia = Libraries {
        nvml: libraries.nvml.clone(),
        ..none()
    };
    let amd = Libraries {
        hip: libraries.hip.clone(),
        ..none()
    };
    let mut all = Probed::default();
    for (vendor, libraries) in [("NVIDIA", nvidia), ("AMD", amd)] {
        match supervisor.call(&Probe { libraries }, silence_max, &|_| ()) {
            Ok(probed) => {
                all.devices.extend(probed.devices);
                all.warnings.extend(probed.warnings);
                all.notes.extend(probed.notes);
            }
            Err(error) => all.warnings.push(format!(
                "devices of {vendor} cannot be looked for, so none is listed: its management library has crashed or hangs: \
                 {error}"
            )),
        }
    }
    all
}
