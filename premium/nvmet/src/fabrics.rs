//! Connect, the first command of NVMe over Fabrics: entry, data and status (NVMe over Fabrics 1.1, section 3.3). Pure:
//! encodes and decodes bytes.

use fabricbios_wire::HostId;
use serde::{Deserialize, Serialize};

/// Bytes of a submission queue entry.
pub(super) const ENTRY_BYTES: usize = 64;
/// Bytes of a Connect command's data.
pub(super) const CONNECT_BYTES: usize = 1024;
/// Bytes of a name in that data, padded with zeros.
const NAME_BYTES: usize = 256;

/// Number of entries of the requested queue, minus one.
pub(super) const QUEUE_ENTRIES: u16 = 31;

/// The status of a Connect, without the phase bit. 0 is success. Any other value has the type of the status, its code,
/// and 0x4000 for "do not retry".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Status(pub(super) u16);

impl Status {
    /// Whether the status is "Connect Invalid Parameters", the answer for a subsystem that is not linked to the port. A
    /// target looks for the subsystem before it looks at the host, so a host that is not allowed gets another status
    /// (`nvmet_alloc_ctrl` in drivers/nvme/target/core.c).
    pub(super) fn says_no_such_subsystem(self) -> bool {
        self.0 & 0x07FF == 0x0182
    }

    /// The status in the last two bytes of a completion queue entry.
    pub(super) fn of(field: [u8; 2]) -> Self {
        Self(u16::from_le_bytes(field) >> 1)
    }
}

/// A request for a connection of a host to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) host_id: HostId,
    pub(super) subsystem: String,
    pub(super) host: String,
}

/// A Connect for an admin queue. The scatter list `from` describes where its data is.
pub(super) fn connect_entry(from: [u8; 16]) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    // Fabrics command, with a scatter list; type Connect.
    entry[0] = 0x7F;
    entry[1] = 0x40;
    entry[4] = 0x01;
    entry[24..40].copy_from_slice(&from);
    entry[44..46].copy_from_slice(&QUEUE_ENTRIES.to_le_bytes());
    entry
}

/// The data of a Connect. `None`: a name is too long.
pub(super) fn connect_data(question: &Question) -> Option<[u8; CONNECT_BYTES]> {
    let mut data = [0; CONNECT_BYTES];
    data[..16].copy_from_slice(&question.host_id.0);
    // Any controller.
    data[16..18].copy_from_slice(&[0xFF; 2]);
    name(&mut data[256..512], &question.subsystem)?;
    name(&mut data[512..768], &question.host)?;
    Some(data)
}

fn name(field: &mut [u8], name: &str) -> Option<()> {
    // At least one byte of the field stays zero.
    let field = field.get_mut(..NAME_BYTES - 1)?.get_mut(..name.len())?;
    field.copy_from_slice(name.as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(subsystem: &str, host: &str) -> Question {
        Question {
            host_id: HostId([0xA5; 16]),
            subsystem: subsystem.to_owned(),
            host: host.to_owned(),
        }
    }

    #[test]
    fn a_connect_says_who_wants_what() {
        let entry = connect_entry([7; 16]);
        assert_eq!(entry[..5], [0x7F, 0x40, 0, 0, 1]);
        assert_eq!(entry[24..40], [7; 16]);
        assert_eq!(
            entry[40..48],
            [0, 0, 0, 0, 31, 0, 0, 0],
            "admin queue of 32"
        );
        let data = connect_data(&question("nqn.s", "nqn.h")).unwrap();
        assert_eq!(data[..18], [[0xA5; 16].as_slice(), &[0xFF, 0xFF]].concat());
        assert_eq!(data[256..262], *b"nqn.s\0");
        assert_eq!(data[512..518], *b"nqn.h\0");
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let fits = |subsystem: usize, host: usize| {
            connect_data(&question(&"n".repeat(subsystem), &"n".repeat(host))).is_some()
        };
        assert!(fits(255, 255));
        assert!(!fits(256, 1));
        assert!(!fits(1, 4096));
    }

    #[test]
    fn a_status_tells_a_missing_subsystem_from_everything_else() {
        // The status of Linux 6.12 for a subsystem that is not linked to the port.
        assert_eq!(Status::of([0x04, 0x83]), Status(0x4182));
        assert!(Status(0x4182).says_no_such_subsystem());
        for other in [0, 0x4184, 0x0182 ^ 0x0100, 0x4006] {
            assert!(!Status(other).says_no_such_subsystem(), "{other:#06x}");
        }
    }
}
