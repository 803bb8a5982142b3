//! Requests that are refused.

use fabricbios_wire::*;

use super::*;
use crate::samples;

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_headers(c: &mut Vec<Case>) {
    use LeaseError::{Malformed, Unsupported};
    let ping = frame(0, 1, &[9; 8]);
    let changed = |at: usize, byte: u8| {
        let mut frame = ping.clone();
        frame[at] = byte;
        frame
    };
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_header_{name}"), Kind::Request, about, bytes, error);
    };
    add("empty", "no bytes at all", vec![], Malformed);
    add("cut", "19 of the 20 bytes", ping[..19].to_vec(), Malformed);
    add("version_01", "an unknown version", changed(0, 1), Unsupported);
    add("version_ff", "an unknown version", changed(0, 0xFF), Unsupported);
    for bit in 0..7 {
        let flags = 1 << bit;
        let name = format!("flag_{flags:02x}");
        add(&name, "an unknown flag", changed(1, flags), Unsupported);
    }
    add("flag_reply", "a reply where a request belongs", changed(1, REPLY), Unsupported);
    for code in [0x0000, 0x0207, 0x0600, 0xFFFF] {
        let name = format!("type_{code:04x}");
        add(&name, "an unknown message type", frame(0, code, &[]), Unsupported);
    }
    for code in [0x0601, 0x060D] {
        let name = format!("session_{code:04x}");
        add(&name, "an operation of a GPU session", frame(0, code, &[]), Unsupported);
    }
    add("length_short", "payload_len is less than what follows", changed(19, 7), Malformed);
    add("length_long", "payload_len is more than what follows", changed(19, 9), Malformed);
    add("length_absurd", "payload_len is 0xff000008", changed(16, 0xFF), Malformed);
    let mut limit = changed(17, 1);
    limit[19] = 1;
    add("length_65537", "payload_len is one above the limit", limit, Malformed);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_requests(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let id = samples::LEASE.0.to_be_bytes();
    let mut add = |name: &str, about: &str, msg_type: u16, payload: &[u8], error| {
        let bytes = frame(0, msg_type, payload);
        bad(c, &format!("bad_request_{name}"), Kind::Request, about, bytes, error);
    };
    add("ping_cut", "PING with 7 bytes", 0x0001, &[1; 7], Malformed);
    add("ping_long", "PING with 9 bytes", 0x0001, &[1; 9], Malformed);
    add("identity_long", "GET_IDENTITY with a payload", 0x0002, &[0], Malformed);
    add("inventory_form", "GET_INVENTORY form 2", 0x0100, &[2], InvalidArgs);
    let alloc = |capacity: u64, secs: u32, length: u32, params: &[u8]| {
        let (kind, grace) = (2_u16.to_be_bytes(), 0_u32.to_be_bytes());
        let (capacity, secs) = (capacity.to_be_bytes(), secs.to_be_bytes());
        let length = length.to_be_bytes();
        [
            &kind[..],
            &[0; 16],
            &capacity,
            &secs,
            &grace,
            &length,
            params,
        ]
        .concat()
    };
    add("alloc_capacity_0", "LEASE_ALLOC of nothing", 0x0200, &alloc(0, 1, 0, &[]), InvalidArgs);
    add("alloc_secs_0", "LEASE_ALLOC for no time", 0x0200, &alloc(1, 0, 0, &[]), InvalidArgs);
    let payload = alloc(1, 1, 6, &[9, 2, 0, 1, 1]);
    add("alloc_params_long", "params_len is more than what follows", 0x0200, &payload, Malformed);
    let payload = alloc(1, 1, 4, &[9, 2, 0, 1, 1]);
    let about = "params_len cuts the last TLV: a known tag whose length runs out";
    add("alloc_params_short", about, 0x0200, &payload, InvalidIntent);
    let payload = alloc(1, 1, u32::MAX, &[]);
    add("alloc_params_absurd", "params_len is 0xffffffff", 0x0200, &payload, Malformed);
    let payload = alloc(1, 1, 5, &[9, 2, 0, 1, 0xFF]);
    add("alloc_reserved_class", "a reserved class byte", 0x0200, &payload, InvalidIntent);
    for code in [0x0202, 0x0203, 0x020A, 0x0301] {
        let name = format!("zero_id_{code:04x}");
        add(&name, "an id of zero", code, &[0; 16], InvalidArgs);
        let name = format!("cut_id_{code:04x}");
        add(&name, "15 bytes of an id", code, &id[..15], Malformed);
    }
    let list = [&id[..], &[2]].concat();
    add("list_ended", "LEASE_LIST with 2 for yes", 0x0204, &list, InvalidArgs);
    let bind = [&id[..], &[0; 4]].concat();
    add("bind_without_peer", "LEASE_BIND without 0x0210", 0x0205, &bind, InvalidIntent);
    let mut leaves = |name: &str, about: &str, tlvs: &[u8]| {
        let length = u32::try_from(tlvs.len()).unwrap_or(u32::MAX).to_be_bytes();
        add(name, about, 0x0205, &[&id[..], &length, tlvs].concat(), InvalidIntent);
    };
    let leaving = |number: u32| tlv(0x0212, &number.to_be_bytes());
    leaves("bind_leave_0", "queue pair 0 leaves", &leaving(0));
    leaves("bind_leave_25_bits", "queue pair 0x1000000 leaves", &leaving(0x0100_0000));
    leaves("bind_leave_9", "one more than 8 leave", &leaving(17).repeat(9));
    let mut joining = [0; 28];
    joining[3] = 17;
    leaves("bind_beside_9", "one more than 8 join", &tlv(0x0211, &joining).repeat(9));
    let both = [tlv(0x0211, &joining), leaving(17)].concat();
    leaves("bind_beside_and_leave", "one joins and one leaves", &both);
    let both = [tlv(0x0210, &joining), tlv(0x0211, &joining)].concat();
    leaves("bind_and_beside", "a new binding and one that joins", &both);
    let attach = tlv(0x0213, &[]);
    leaves("bind_attach_length_1", "a question with a byte", &tlv(0x0213, &[0]));
    leaves("bind_attach_twice", "two questions", &attach.repeat(2));
    leaves("bind_attach_and_leave", "a question, and one leaves", &[attach, leaving(17)].concat());
    let rotate = [&id[..], &60_001_u32.to_be_bytes()].concat();
    add("rotate_overlap", "an overlap above 60,000 ms", 0x0206, &rotate, InvalidArgs);
    add("fence_list_long", "FENCE_LIST with a payload", 0x0300, &[0], Malformed);
    let issue = |role: u8, tenant: &[u8], csr: &[u8]| {
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
        [
            &[role, 0, 0, 0, 0],
            &length(tenant)[..],
            tenant,
            &length(csr),
            csr,
        ]
        .concat()
    };
    add("issue_role", "role 2", 0x0400, &issue(2, b"a", b"x"), InvalidArgs);
    add("issue_tenant", "a tenant with a slash", 0x0400, &issue(0, b"a/b", b"x"), InvalidArgs);
    add("issue_tenant_empty", "no tenant", 0x0400, &issue(0, b"", b"x"), InvalidArgs);
    add("issue_tenant_long", "65 bytes", 0x0400, &issue(0, &[b'a'; 65], b"x"), Malformed);
    add("issue_csr_empty", "no request to sign", 0x0400, &issue(0, b"a", b""), InvalidArgs);
    add("issue_csr_long", "4,097 bytes", 0x0400, &issue(0, b"a", &[0; 4_097]), Malformed);
}
