//! Critical XID errors.
//!
//! The source is NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog"): what it
//! answers by a reset of the device or the machine (RESET_GPU, RESTART_BM) has failed, and what it answers by ending the
//! program (RESTART_APP) or by nothing (IGNORE) changes no health, unless its text asks for a reset at some time. 48, 74 and 144
//! to 150 have workflows there. 109 is answered by a reset there, but any program can cause it by not ending: NVIDIA's own
//! device plugin for Kubernetes counts it with the programs' errors, like 13, 31, 43, 45 and 68; if the device does need a
//! reset, the driver tells so by its recovery action.

use std::ops::RangeInclusive;

use crate::Health;

/// What an XID says of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// A program, or the driver in its service, did something wrong.
    Program,
    /// It works with a fault.
    Degraded,
    /// It needs a reset, or worse.
    Failed,
}

use Means::{Degraded, Failed, Program};

/// In the order of their numbers.
const TABLE: &[(RangeInclusive<u64>, Means, &str)] = &[
    (8..=8, Program, "it stopped processing"),
    (11..=14, Program, "exception of a program"),
    (25..=25, Program, "invalid commands of a program"),
    (
        31..=32,
        Program,
        "page fault, or invalid commands of a program",
    ),
    (37..=41, Program, "firmware or copy engine exception"),
    (43..=45, Program, "a program was ended"),
    (46..=46, Failed, "it stopped processing"),
    (48..=48, Failed, "memory error that ECC could not correct"),
    (60..=60, Program, "video exception"),
    (62..=62, Failed, "its micro-controller halted"),
    (
        63..=63,
        Degraded,
        "a reset is due: it takes bad memory out of use",
    ),
    (64..=64, Failed, "bad memory could not be taken out of use"),
    (66..=72, Program, "exception of a program"),
    (74..=74, Degraded, "NVLink error: a reset is due"),
    (75..=77, Program, "copy engine exception"),
    (
        79..=79,
        Failed,
        "it has fallen off the bus: restart the machine",
    ),
    (80..=80, Program, "corrupted data was sent to it"),
    (82..=86, Program, "exception of a program"),
    (88..=89, Program, "video exception"),
    (92..=92, Degraded, "ECC corrects many memory errors"),
    (
        93..=93,
        Program,
        "its information ROM is protected from wear",
    ),
    (
        94..=94,
        Degraded,
        "memory error that cost one program: a reset is due",
    ),
    (
        95..=95,
        Failed,
        "memory error that may have hit any program",
    ),
    (96..=105, Program, "video exception"),
    (106..=107, Program, "test message"),
    (109..=109, Program, "a program did not let others run"),
    (110..=110, Failed, "security fault"),
    (
        119..=120,
        Failed,
        "its system processor does not answer, or failed",
    ),
    (121..=121, Program, "corrected link error"),
    (126..=135, Program, "copy engine exception"),
    (136..=136, Failed, "NVLink training failed"),
    (
        137..=137,
        Program,
        "a program used NVLink without permission",
    ),
    (139..=139, Program, "exception of a program"),
    (140..=140, Failed, "memory error that ECC could not correct"),
    (141..=142, Program, "exception of a program"),
    (143..=143, Failed, "it could not be initialised"),
    (144..=150, Degraded, "NVLink error"),
    // The driver says what has to be done: it is asked after each error.
    (154..=154, Program, "another recovery action"),
    (155..=155, Degraded, "NVLink error"),
    (
        156..=156,
        Degraded,
        "a reset is due: it takes bad parts out of use",
    ),
    (157..=157, Degraded, "no spare parts are left for bad ones"),
    (158..=158, Failed, "it does not answer"),
    (160..=160, Program, "a channel was taken out of use"),
    (167..=167, Failed, "it does not answer over PCI Express"),
    (169..=169, Failed, "its micro-controller halted"),
    (171..=172, Failed, "memory error that ECC could not correct"),
];

/// The health of a device that had this error. `None`: the error says nothing of the device.
pub(super) fn health(xid: u64) -> Option<Health> {
    let row = TABLE.iter().find(|(numbers, ..)| numbers.contains(&xid));
    let (means, text) = row.map_or(
        (Degraded, "an error that this program does not know"),
        |(_, means, text)| (*means, *text),
    );
    let text = format!("XID {xid}: {text}");
    match means {
        Program => None,
        Degraded => Some(Health::Degraded(text)),
        Failed => Some(Health::Failed(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_in_two_rows() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].0.end() < pair[1].0.start(), "{pair:?}");
        }
    }

    #[test]
    fn errors_of_programs_are_not_the_devices() {
        for xid in [13, 31, 43, 45, 68, 69, 109] {
            assert_eq!(health(xid), None, "{xid}");
        }
        for xid in [63, 74, 92, 94, 9999] {
            assert!(matches!(health(xid), Some(Health::Degraded(_))), "{xid}");
        }
        for xid in [48, 62, 64, 79, 95, 119, 120, 140] {
            assert!(matches!(health(xid), Some(Health::Failed(_))), "{xid}");
        }
        let text = "XID 79: it has fallen off the bus: restart the machine";
        assert_eq!(health(79), Some(Health::Failed(text.into())));
    }
}
