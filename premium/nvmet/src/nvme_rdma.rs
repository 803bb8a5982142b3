//! The part of NVMe over RDMA that a Connect needs: the connection manager's request, and the capsules (NVMe/RDMA
//! transport specification 1.0; `include/linux/nvme-rdma.h`). Pure: encodes and decodes bytes.

use super::fabrics::{CONNECT_BYTES, ENTRY_BYTES, QUEUE_ENTRIES, Status, connect_entry};

/// Bytes of private data in the request for a connection.
const REQUEST_BYTES: usize = 32;
/// Bytes of a completion queue entry, which is the whole response.
pub(super) const RESPONSE_BYTES: usize = 16;

/// The private data: format 0, the admin queue, and the sizes of the receive and the send queue.
pub(super) fn request() -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[4..6].copy_from_slice(&(QUEUE_ENTRIES + 1).to_le_bytes());
    request[6..8].copy_from_slice(&QUEUE_ENTRIES.to_le_bytes());
    request
}

/// A Connect whose data the target reads from `address` with `key`.
pub(super) fn connect(address: u64, key: u32) -> [u8; ENTRY_BYTES] {
    let mut list = [0; 16];
    list[..8].copy_from_slice(&address.to_le_bytes());
    let length = u32::try_from(CONNECT_BYTES).unwrap_or(0).to_le_bytes();
    list[8..11].copy_from_slice(&length[..3]);
    list[11..15].copy_from_slice(&key.to_le_bytes());
    // A keyed data block, in the type field of the list.
    list[15] = 0x40;
    connect_entry(list)
}

/// The status in a response.
pub(super) fn status(response: [u8; RESPONSE_BYTES]) -> Status {
    Status::of([response[14], response[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_32_is_asked_for() {
        assert_eq!(request()[..10], [0, 0, 0, 0, 32, 0, 31, 0, 0, 0]);
    }

    #[test]
    fn the_target_is_told_where_to_read() {
        let entry = connect(0x0102_0304_0506_0708, 0xA1B2_C3D4);
        assert_eq!(entry[24..32], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(entry[32..40], [0, 4, 0, 0xD4, 0xC3, 0xB2, 0xA1, 0x40]);
    }

    #[test]
    fn the_status_is_behind_the_command_it_answers() {
        let mut response = [0xFF; RESPONSE_BYTES];
        response[14..].copy_from_slice(&[0x04, 0x83]);
        assert_eq!(status(response), Status(0x4182));
    }
}
