//! The names of the devices, which are the same everywhere and always.

use crate::Knobs;
use crate::knob::Knob;

/// The vendor of an emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// The device of NVML and of the CUDA driver API.
    Nvidia,
    /// The device of HIP.
    Amd,
}

impl Vendor {
    /// `nvidia` or `amd`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
        }
    }

    /// The file with the device's memory.
    #[must_use]
    pub fn memory_file(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia.device-memory",
            Self::Amd => "amd.device-memory",
        }
    }

    /// The file with the table of allocations.
    #[must_use]
    pub fn table_file(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia.table",
            Self::Amd => "amd.table",
        }
    }

    /// Whether the vendor's library finds a device.
    #[must_use]
    pub fn is_present(self, knobs: &Knobs) -> bool {
        let absent = knobs.text(Knob::Absent);
        !absent.split_whitespace().any(|it| it == self.name())
    }
}

/// The identity of a device or of a partition of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its vendor.
    pub vendor: Vendor,
    /// The number of a partition; `None`: the whole device.
    pub partition: Option<u32>,
}

/// PCI domain of the devices, so high that no real device has it.
const DOMAIN: u32 = 0xF1B0;

impl Identity {
    /// Most partitions of the NVIDIA device, and its compute slices.
    pub const PARTITIONS_MAX: u32 = 7;
    /// Streaming multiprocessors in one compute slice.
    pub const MULTIPROCESSORS_OF_A_SLICE: u32 = 2;

    /// A whole device.
    #[must_use]
    pub fn whole(vendor: Vendor) -> Self {
        Self {
            vendor,
            partition: None,
        }
    }

    /// A partition of the NVIDIA device.
    #[must_use]
    pub fn partition(number: u32) -> Self {
        Self {
            vendor: Vendor::Nvidia,
            partition: Some(number),
        }
    }

    /// The name for people.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.vendor, self.partition) {
            (Vendor::Nvidia, None) => "Stand-in NVIDIA GPU".to_owned(),
            (Vendor::Nvidia, Some(number)) => format!("Stand-in NVIDIA GPU MIG {number}"),
            (Vendor::Amd, _) => "Stand-in AMD GPU".to_owned(),
        }
    }

    /// The 16 bytes of the UUID. For an AMD device they are the hexadecimal digits of its number.
    #[must_use]
    pub fn uuid_bytes(&self) -> [u8; 16] {
        if self.vendor == Vendor::Amd {
            return *b"57a4d1f1b0000002";
        }
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[0x57, 0xa4, 0xd1, 0xf1]);
        (bytes[6], bytes[8], bytes[15]) = (0x40, 0x80, 1);
        if let Some(number) = self.partition {
            (bytes[14], bytes[15]) = (1, u8::try_from(number).unwrap_or(u8::MAX));
        }
        bytes
    }

    /// The UUID in the form of `CUDA_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES`.
    #[must_use]
    pub fn uuid(&self) -> String {
        let bytes = self.uuid_bytes();
        if self.vendor == Vendor::Amd {
            return format!("GPU-{}", String::from_utf8_lossy(&bytes));
        }
        let kind = if self.partition.is_some() {
            "MIG"
        } else {
            "GPU"
        };
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        format!("{kind}-{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
    }

    /// Domain, bus and device number on the PCI bus.
    #[must_use]
    pub fn pci(&self) -> (u32, u32, u32) {
        match self.vendor {
            Vendor::Nvidia => (DOMAIN, 0xF1, 0),
            Vendor::Amd => (DOMAIN, 0xF2, 0),
        }
    }

    /// The devices that the environment and MIG mode leave visible to a driver of this vendor.
    #[must_use]
    pub fn visible(vendor: Vendor, partitions: u32) -> Vec<Self> {
        let variable = |name| std::env::var(name).ok();
        match vendor {
            Vendor::Nvidia => nvidia_visible(partitions, variable("CUDA_VISIBLE_DEVICES")),
            Vendor::Amd => {
                let (rocr, hip) = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES");
                let all = vec![Self::whole(Vendor::Amd)];
                chosen(chosen(all, variable(rocr)), variable(hip))
            }
        }
    }
}

/// CUDA shows one partition to a process: the first one, unless the variable names another.
fn nvidia_visible(partitions: u32, wanted: Option<String>) -> Vec<Identity> {
    let whole = Identity::whole(Vendor::Nvidia);
    if partitions == 0 {
        return chosen(vec![whole], wanted);
    }
    let first = vec![Identity::partition(0)];
    let Some(wanted) = wanted else {
        return first;
    };
    let wanted = wanted.split(',').next().unwrap_or_default().trim();
    if wanted == "0" || wanted == whole.uuid() {
        return first;
    }
    let all = (0..partitions).map(Identity::partition);
    all.filter(|it| it.uuid() == wanted).collect()
}

/// The devices that a variable lists by number or UUID. Entries after an unknown one are ignored.
fn chosen(from: Vec<Identity>, variable: Option<String>) -> Vec<Identity> {
    let Some(variable) = variable else {
        return from;
    };
    let find = |wanted: &str| {
        let mut each = from.iter().enumerate();
        let found = each.find(|(at, it)| at.to_string() == wanted || it.uuid() == wanted);
        found.map(|(_, it)| it.clone())
    };
    variable
        .split(',')
        .map_while(|it| find(it.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_as_the_vendors_write_them() {
        let nvidia = Identity::whole(Vendor::Nvidia).uuid();
        assert_eq!(nvidia, "GPU-57a4d1f1-0000-4000-8000-000000000001");
        let second = Identity::partition(1).uuid();
        assert_eq!(second, "MIG-57a4d1f1-0000-4000-8000-000000000101");
        assert_eq!(Identity::whole(Vendor::Amd).uuid(), "GPU-57a4d1f1b0000002");
    }

    #[test]
    fn the_variable_chooses_by_number_or_uuid() {
        let whole = Identity::whole(Vendor::Nvidia);
        let uuid = whole.uuid();
        let seen = |wanted: Option<&str>| nvidia_visible(0, wanted.map(str::to_owned));
        for wanted in [None, Some("0"), Some(uuid.as_str()), Some("0,7")] {
            assert_eq!(seen(wanted), std::slice::from_ref(&whole), "{wanted:?}");
        }
        for wanted in ["", "-1", "1", "GPU-0", "7,0", "MIG-57a4d1f1"] {
            assert_eq!(seen(Some(wanted)), [], "{wanted}");
        }
    }

    #[test]
    fn one_partition_is_visible() {
        let seen = |wanted: Option<&str>| nvidia_visible(3, wanted.map(str::to_owned));
        assert_eq!(seen(None), [Identity::partition(0)]);
        assert_eq!(
            seen(Some(&Identity::whole(Vendor::Nvidia).uuid())),
            [Identity::partition(0)]
        );
        assert_eq!(
            seen(Some(&Identity::partition(2).uuid())),
            [Identity::partition(2)]
        );
        assert_eq!(seen(Some(&Identity::partition(3).uuid())), []);
    }
}
