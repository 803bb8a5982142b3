//! Critical XID errors.
//!
//! The source is NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
//! Catalog"). If the catalogue's action is a reset of the device or the machine (RESET_GPU, RESTART_BM), the device has
//! failed. If the action is to end the program (RESTART_APP) or nothing (IGNORE), the health does not change, unless
//! the catalogue's text asks for a reset at some time. 48, 74 and 144 to 150 have workflows there. The action of 109 is
//! a reset there, but any program can cause 109 by not ending: NVIDIA's own device plugin for Kubernetes counts it with
//! the programs' errors, like 13, 31, 43, 45 and 68; if the device does need a reset, the driver reports that by its
//! recovery action. A number without an arm of its own degrades the device.

use crate::Health;

/// The health of a device that had this error. `None`: a program, or the driver while it served one, caused the error,
/// which says nothing about the device.
pub(super) fn health(xid: u64) -> Option<Health> {
    let failed = |text| Some(Health::Failed(format!("XID {xid}: {text}")));
    let degraded = |text| Some(Health::Degraded(format!("XID {xid}: {text}")));
    match xid {
        8 | 11..=14 | 25 | 31..=32 | 37..=41 | 43..=45 | 60 | 66..=72 | 75..=77 => None,
        80 | 82..=86 | 88..=89 | 93 | 96..=107 | 109 | 121 | 126..=135 | 137 | 139 => None,
        141..=142 | 160 => None,
        // The recovery action has changed: the watcher reads it after each error.
        154 => None,
        46 => failed("it stopped processing"),
        48 | 140 | 171..=172 => failed("memory error that ECC could not correct"),
        62 | 169 => failed("its micro-controller halted"),
        64 => failed("bad memory could not be taken out of use"),
        79 => failed("it has fallen off the bus: restart the machine"),
        95 => failed("memory error that may have hit any program"),
        110 => failed("security fault"),
        119..=120 => failed("its system processor does not answer, or failed"),
        136 => failed("NVLink training failed"),
        143 => failed("it could not be initialised"),
        158 => failed("it does not answer"),
        167 => failed("it does not answer over PCI Express"),
        63 | 156 => degraded("a reset is due: it takes bad memory or other bad parts out of use"),
        74 => degraded("NVLink error: a reset is due"),
        94 => degraded("memory error that cost one program: a reset is due"),
        _ => degraded("see NVIDIA's catalogue of XID errors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_programs_are_not_the_devices() {
        let programs = [
            8, 11, 12, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 66, 67, 68, 69, 70,
            71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 93, 96, 97, 98, 99, 100, 101, 102,
            103, 104, 105, 106, 107, 109, 121, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135,
            137, 139, 141, 142, 154, 160,
        ];
        let failed = [
            46, 48, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 158, 167, 169, 171, 172,
        ];
        for xid in 0..=200 {
            match health(xid) {
                None => assert!(programs.contains(&xid), "{xid}"),
                Some(Health::Failed(_)) => assert!(failed.contains(&xid), "{xid}"),
                Some(Health::Degraded(_)) => {
                    assert!(!programs.contains(&xid) && !failed.contains(&xid), "{xid}");
                }
                other => panic!("XID {xid}: {other:?}"),
            }
        }
        let text = "XID 79: it has fallen off the bus: restart the machine";
        assert_eq!(health(79), Some(Health::Failed(text.into())));
        for xid in [63, 74, 94, 156] {
            let Some(Health::Degraded(text)) = health(xid) else {
                panic!("XID {xid}")
            };
            assert!(text.contains("a reset is due"), "{text}");
        }
    }
}
