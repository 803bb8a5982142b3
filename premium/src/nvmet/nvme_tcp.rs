//! As much of NVMe/TCP as asks for a connection: the initialize PDUs, and the Fabrics Connect command with
//! its answer (NVMe/TCP transport specification 1.0, sections 3.6.2; NVMe over Fabrics 1.1, section 3.3).
//! Pure: bytes both ways.

use fabricbios_wire::HostId;

/// Bytes of ICReq and ICResp.
pub(super) const INIT_BYTES: usize = 128;
/// Bytes of a response capsule.
pub(super) const RESPONSE_BYTES: usize = 24;
/// Bytes before the data of a command capsule: a common header and a submission queue entry.
const COMMAND_BYTES: usize = 72;
/// Bytes of a Connect command's data.
const CONNECT_BYTES: usize = 1024;
/// Bytes of a name in that data, zeros behind it.
const NAME_BYTES: usize = 256;

/// Entries of the queue that is asked for, less one.
const QUEUE_ENTRIES: u16 = 31;

const ICREQ: u8 = 0x00;
const ICRESP: u8 = 0x01;
const COMMAND: u8 = 0x04;
const RESPONSE: u8 = 0x05;

/// The answer to a Connect, without phase bit: 0 is success, else the kind of the status, its number, and
/// 0x4000 for "do not try again".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u16);

impl Status {
    /// "Connect Invalid Parameters", which is what a target says of a subsystem that the port has not. It
    /// looks for the subsystem before it looks at the host, so a host that may not connect to one that is
    /// there gets another answer (`nvmet_alloc_ctrl` in drivers/nvme/target/core.c).
    pub(super) fn says_no_such_subsystem(self) -> bool {
        self.0 & 0x07FF == 0x0182
    }
}

/// The first bytes from a host. No digests, version 0.
pub(super) fn initialize() -> [u8; INIT_BYTES] {
    let mut pdu = [0; INIT_BYTES];
    header(&mut pdu, ICREQ, INIT_BYTES, 0, INIT_BYTES);
    pdu
}

/// Whether the controller agrees; `Err` says what it sent.
pub(super) fn check_initialized(pdu: &[u8; INIT_BYTES]) -> Result<(), String> {
    let expected = (ICRESP, INIT_BYTES, [0, 0]);
    let version = [pdu[8], pdu[9]];
    if (pdu[0], length(pdu), version) == expected {
        return Ok(());
    }
    let (kind, length) = (pdu[0], length(pdu));
    Err(format!(
        "PDU type {kind:#04x} of {length} bytes, version {version:?}, instead of ICResp"
    ))
}

/// Connect for an admin queue, its data in the capsule. `None`: a name is too long.
pub(super) fn connect(host_id: HostId, subsystem: &str, host: &str) -> Option<Vec<u8>> {
    let mut pdu = vec![0; COMMAND_BYTES + CONNECT_BYTES];
    header(
        &mut pdu,
        COMMAND,
        COMMAND_BYTES,
        COMMAND_BYTES,
        COMMAND_BYTES + CONNECT_BYTES,
    );
    let (head, data) = pdu.split_at_mut(COMMAND_BYTES);
    let entry = &mut head[8..];
    // Fabrics command, with a scatter list; type Connect.
    entry[0] = 0x7F;
    entry[1] = 0x40;
    entry[4] = 0x01;
    // The data is in the capsule, at offset 0.
    entry[32..36].copy_from_slice(&u32::try_from(CONNECT_BYTES).ok()?.to_le_bytes());
    entry[39] = 0x01;
    entry[44..46].copy_from_slice(&QUEUE_ENTRIES.to_le_bytes());
    data[..16].copy_from_slice(&host_id.0);
    // Any controller.
    data[16..18].copy_from_slice(&[0xFF; 2]);
    name(&mut data[256..512], subsystem)?;
    name(&mut data[512..768], host)?;
    Some(pdu)
}

/// The status in a response; `Err` says what it is instead.
pub(super) fn status(pdu: &[u8; RESPONSE_BYTES]) -> Result<Status, String> {
    if (pdu[0], length(pdu)) == (RESPONSE, RESPONSE_BYTES) {
        return Ok(Status(u16::from_le_bytes([pdu[22], pdu[23]]) >> 1));
    }
    let (kind, length) = (pdu[0], length(pdu));
    Err(format!(
        "PDU type {kind:#04x} of {length} bytes instead of a response capsule"
    ))
}

/// Common header: type, flags, header length, data offset, length of all. The lengths are constants that fit.
fn header(pdu: &mut [u8], kind: u8, header: usize, data: usize, all: usize) {
    let small = |length: usize| u8::try_from(length).unwrap_or(u8::MAX);
    let whole = u32::try_from(all).unwrap_or(u32::MAX);
    pdu[0] = kind;
    pdu[2] = small(header);
    pdu[3] = small(data);
    pdu[4..8].copy_from_slice(&whole.to_le_bytes());
}

fn length(pdu: &[u8]) -> usize {
    let bytes = pdu.get(4..8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, |bytes| u32::from_le_bytes(bytes) as usize)
}

fn name(field: &mut [u8], name: &str) -> Option<()> {
    // One byte at least stays zero.
    let field = field.get_mut(..NAME_BYTES - 1)?.get_mut(..name.len())?;
    field.copy_from_slice(name.as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: HostId = HostId([0xA5; 16]);

    #[test]
    fn a_host_begins_with_the_initialize_pdu_of_the_specification() {
        let mut expected = [0; INIT_BYTES];
        expected[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
        assert_eq!(initialize(), expected);
    }

    #[test]
    fn a_connect_says_who_wants_what() {
        let pdu = connect(ID, "nqn.s", "nqn.h").unwrap();
        assert_eq!(pdu.len(), 1096);
        assert_eq!(pdu[..8], [4, 0, 72, 72, 0x48, 0x04, 0, 0]);
        assert_eq!(pdu[8..13], [0x7F, 0x40, 0, 0, 1]);
        assert_eq!(
            pdu[40..48],
            [0, 4, 0, 0, 0, 0, 0, 1],
            "1024 bytes in the capsule"
        );
        assert_eq!(pdu[48..56], [0, 0, 0, 0, 31, 0, 0, 0], "admin queue of 32");
        let data = &pdu[72..];
        assert_eq!(data[..18], [[0xA5; 16].as_slice(), &[0xFF, 0xFF]].concat());
        assert_eq!(data[256..262], *b"nqn.s\0");
        assert_eq!(data[512..518], *b"nqn.h\0");
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        assert!(connect(ID, &"n".repeat(255), "h").is_some());
        assert_eq!(connect(ID, &"n".repeat(256), "h"), None);
        assert_eq!(connect(ID, "s", &"n".repeat(4096)), None);
    }

    /// What Linux 6.12 answers for a subsystem that is not linked to the port.
    fn canned() -> [u8; RESPONSE_BYTES] {
        let mut pdu = [0; RESPONSE_BYTES];
        pdu[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
        pdu[8..12].copy_from_slice(&[0, 1, 1, 0]);
        pdu[22..].copy_from_slice(&[0x04, 0x83]);
        pdu
    }

    #[test]
    fn an_answer_tells_a_missing_subsystem_from_everything_else() {
        assert_eq!(status(&canned()), Ok(Status(0x4182)));
        assert!(Status(0x4182).says_no_such_subsystem());
        for other in [0, 0x4184, 0x0182 ^ 0x0100, 0x4006] {
            assert!(!Status(other).says_no_such_subsystem(), "{other:#06x}");
        }
    }

    #[test]
    fn what_is_not_an_answer_is_no_status() {
        for (at, value) in [(0, 3), (0, 7), (4, 25), (5, 1)] {
            let mut pdu = canned();
            pdu[at] = value;
            assert!(status(&pdu).is_err(), "byte {at}");
        }
        let mut reply = initialize();
        assert!(check_initialized(&reply).is_err());
        reply[0] = 1;
        assert_eq!(check_initialized(&reply), Ok(()));
        reply[8] = 1;
        assert!(
            check_initialized(&reply)
                .unwrap_err()
                .contains("version [1, 0]")
        );
    }
}
