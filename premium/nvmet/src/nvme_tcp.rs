//! The part of NVMe/TCP that a Connect needs: the initialize PDUs and the capsules (NVMe/TCP transport specification
//! 1.0, section 3.6.2). Pure: encodes and decodes bytes.

use super::fabrics::{CONNECT_BYTES, ENTRY_BYTES, Question, Status, connect_data, connect_entry};

/// Bytes of ICReq and ICResp.
pub(super) const INIT_BYTES: usize = 128;
/// Bytes of a response capsule.
pub(super) const RESPONSE_BYTES: usize = 24;
/// Bytes of a common header.
const HEADER_BYTES: usize = 8;
/// Bytes of a command capsule before the data.
const COMMAND_BYTES: usize = HEADER_BYTES + ENTRY_BYTES;

const ICREQ: u8 = 0x00;
const ICRESP: u8 = 0x01;
const COMMAND: u8 = 0x04;
const RESPONSE: u8 = 0x05;

/// A PDU that is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WrongPdu {
    #[error("PDU type {kind:#04x} of {length} bytes, version {version:?}, instead of ICResp")]
    Initialize {
        kind: u8,
        length: usize,
        version: [u8; 2],
    },
    #[error("PDU type {kind:#04x} of {length} bytes instead of a response capsule")]
    Response { kind: u8, length: usize },
}

/// The first PDU from a host: no digests, version 0.
pub(super) fn initialize() -> [u8; INIT_BYTES] {
    let mut pdu = [0; INIT_BYTES];
    header(&mut pdu, ICREQ, INIT_BYTES, 0, INIT_BYTES);
    pdu
}

/// Checks that the controller agrees.
pub(super) fn check_initialized(pdu: &[u8; INIT_BYTES]) -> Result<(), WrongPdu> {
    let (kind, length, version) = (pdu[0], length(pdu), [pdu[8], pdu[9]]);
    match (kind, length, version) {
        (ICRESP, INIT_BYTES, [0, 0]) => Ok(()),
        _ => Err(WrongPdu::Initialize {
            kind,
            length,
            version,
        }),
    }
}

/// The capsule of a Connect, with its data. `None`: a name is too long.
pub(super) fn connect(question: &Question) -> Option<Vec<u8>> {
    const LENGTH: usize = COMMAND_BYTES + CONNECT_BYTES;
    let mut pdu = vec![0; LENGTH];
    header(&mut pdu, COMMAND, COMMAND_BYTES, COMMAND_BYTES, LENGTH);
    pdu[HEADER_BYTES..COMMAND_BYTES].copy_from_slice(&connect_entry(in_capsule()));
    pdu[COMMAND_BYTES..].copy_from_slice(&connect_data(question)?);
    Some(pdu)
}

/// The scatter list for data in the capsule, at offset 0.
fn in_capsule() -> [u8; 16] {
    let mut list = [0; 16];
    list[8..12].copy_from_slice(&u32::try_from(CONNECT_BYTES).unwrap_or(0).to_le_bytes());
    list[15] = 0x01;
    list
}

/// The status in a response.
pub(super) fn status(pdu: &[u8; RESPONSE_BYTES]) -> Result<Status, WrongPdu> {
    match (pdu[0], length(pdu)) {
        (RESPONSE, RESPONSE_BYTES) => Ok(Status::of([pdu[22], pdu[23]])),
        (kind, length) => Err(WrongPdu::Response { kind, length }),
    }
}

/// Writes the common header: type, flags, header length, data offset, total length. The lengths are constants that fit.
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

#[cfg(test)]
mod tests {
    use fabricbios_wire::HostId;

    use super::*;

    #[test]
    fn a_host_begins_with_the_initialize_pdu_of_the_specification() {
        let mut expected = [0; INIT_BYTES];
        expected[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
        assert_eq!(initialize(), expected);
    }

    #[test]
    fn a_connect_has_its_data_in_the_capsule() {
        let question = Question {
            host_id: HostId([0xA5; 16]),
            subsystem: "nqn.s".to_owned(),
            host: "nqn.h".to_owned(),
        };
        let pdu = connect(&question).unwrap();
        assert_eq!(pdu.len(), 1096);
        assert_eq!(pdu[..8], [4, 0, 72, 72, 0x48, 0x04, 0, 0]);
        assert_eq!(
            pdu[40..48],
            [0, 4, 0, 0, 0, 0, 0, 1],
            "1024 bytes at offset 0"
        );
        assert_eq!(pdu[72..], connect_data(&question).unwrap());
    }

    /// The answer of Linux 6.12 for a subsystem that is not linked to the port.
    fn canned() -> [u8; RESPONSE_BYTES] {
        let mut pdu = [0; RESPONSE_BYTES];
        pdu[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
        pdu[8..12].copy_from_slice(&[0, 1, 1, 0]);
        pdu[22..].copy_from_slice(&[0x04, 0x83]);
        pdu
    }

    #[test]
    fn an_answer_is_a_status() {
        assert_eq!(status(&canned()), Ok(Status(0x4182)));
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
        let refused = check_initialized(&reply).unwrap_err().to_string();
        assert!(refused.contains("version [1, 0]"), "{refused}");
    }
}
