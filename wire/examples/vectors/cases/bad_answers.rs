//! Answers that a client does not take.

use fabricbios_wire::*;

use super::*;
use crate::samples;

/// The TLVs of a good lease answer, one of them replaced or left out.
fn damaged_lease(tag: u16, instead: &[u8]) -> Vec<u8> {
    let whole = encode_answer(
        &asked(MessageType::LeaseQuery),
        &Ok(Reply::Lease(samples::full_lease())),
    );
    let area_at = HEADER_LEN + 2 + 88 + 4;
    let (fixed, area) = (&whole[HEADER_LEN..area_at - 4], &whole[area_at..]);
    let Ok(walk) = tlv::TlvArea::parse(area, 0) else {
        return vec![];
    };
    let one = |it: tlv::Tlv<'_>| {
        if it.tag == tag {
            instead.to_vec()
        } else {
            tlv(it.tag, it.value)
        }
    };
    let area: Vec<u8> = walk.iter().flat_map(one).collect();
    let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
    frame(
        REPLY,
        MessageType::LeaseQuery as u16,
        &[fixed, &length, &area].concat(),
    )
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_answers(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_answer_{name}"), kind, about, bytes, error);
    };
    let whole = encode_answer(
        &asked(MessageType::LeaseQuery),
        &Ok(Reply::Lease(samples::full_lease())),
    );
    let changed = |at: usize, byte: u8| {
        let mut frame = whole.clone();
        frame[at] = byte;
        frame
    };
    add("not_a_reply", "the flag is missing", changed(1, 0), Malformed);
    add("other_type", "a reply to another message", changed(3, 3), Malformed);
    add("other_request", "a reply to another request", changed(7, 0), Malformed);
    add("other_nonce", "a reply with another nonce", changed(15, 0), Malformed);
    add("status_15", "an unknown status", changed(21, 15), InvalidArgs);
    add("lease_status_3", "an unknown lease status", changed(56, 3), InvalidArgs);
    add("lease_phase_7", "an unknown phase", changed(57, 7), InvalidArgs);
    add("lease_cut", "only the fixed part", frame(REPLY, 0x0202, &whole[20..110]), Malformed);
    let longer = frame(REPLY, 0x0202, &[&whole[20..], &[0]].concat());
    add("lease_trailing", "a byte after the lease", longer, Malformed);
    let mut tag = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        add(name, about, damaged_lease(tag, instead), InvalidIntent);
    };
    tag("lease_id_missing", "no 0x0101", 0x0101, &[]);
    tag("lease_id_other", "0x0101 is another id", 0x0101, &tlv(0x0101, &[1; 16]));
    tag("dp_key_31", "a key of 31 bytes", 0x0102, &tlv(0x0102, &[1; 31]));
    tag(
        "endpoint_wildcard",
        "[::]:5702",
        0x0103,
        &tlv(0x0103, &[&[0; 16][..], &[22, 70]].concat()),
    );
    let v4 = [&[0; 10][..], &[0xFF; 2], &[0; 4], &[22, 70]].concat();
    tag("endpoint_wildcard_v4", "0.0.0.0:5702 as v4-mapped", 0x0103, &tlv(0x0103, &v4));
    tag("limits_overflow", "the end is above 64 bits", 0x0104, &tlv(0x0104, &[0xFF; 16]));
    for missing in [
        0x0202, 0x0203, 0x0204, 0x0205, 0x0206, 0x0207, 0x0208, 0x020A, 0x020B,
    ] {
        tag(&format!("rdma_without_{missing:04x}"), "an RDMA tag is missing", missing, &[]);
    }
    tag("qp_num_25_bits", "a queue pair number", 0x0203, &tlv(0x0203, &[1, 0, 0, 0]));
    tag("psn_25_bits", "a starting PSN", 0x0206, &tlv(0x0206, &[1, 0, 0, 0]));
    tag("path_mtu_1500", "not an InfiniBand MTU", 0x0207, &tlv(0x0207, &[5, 0xDC]));
    tag("strategy_2", "an unknown strategy", 0x0208, &tlv(0x0208, &[2]));
    tag("atomics_2", "2 for yes", 0x020B, &tlv(0x020B, &[2]));
    tag("rkey_twice", "two rkeys", 0x0201, &tlv(0x0201, &[1; 4]).repeat(2));
    let atomics = |further: &[u8]| [&tlv(0x020B, &[1]), further].concat();
    let pair = |qpn: u8, psn: u8| tlv(0x020C, &[qpn, 0, 0, 1, psn, 0, 0, 2, 0, 0, 0, 3]);
    tag("queue_pairs_9", "one more than 8 altogether", 0x020B, &atomics(&pair(0, 0).repeat(7)));
    tag("further_qp_num_25_bits", "a queue pair number", 0x020B, &atomics(&pair(1, 0)));
    tag("further_psn_25_bits", "a starting PSN", 0x020B, &atomics(&pair(0, 1)));
    tag("further_length_11", "11 bytes", 0x020B, &atomics(&tlv(0x020C, &[0; 11])));
    tag("further_length_13", "13 bytes", 0x020B, &atomics(&tlv(0x020C, &[0; 13])));
    let refusal = |area: &[u8]| {
        let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
        frame(REPLY, 0x0202, &[&[0, 5][..], &length, area].concat())
    };
    let (class, text) = (tlv(0x0A01, &[1]), tlv(0x0A02, b"why"));
    add("refusal_without_class", "no 0x0A01", refusal(&text), InvalidIntent);
    add("refusal_without_text", "no 0x0A02", refusal(&class), InvalidIntent);
    let odd = refusal(&[tlv(0x0A01, &[3]), text].concat());
    add("refusal_class_3", "an unknown class", odd, InvalidIntent);
    let odd = refusal(&[&class[..], &tlv(0x0A02, &[0xC3])].concat());
    add("refusal_text_not_utf8", "half a character", odd, InvalidIntent);
    let odd = refusal(&[&class[..], &tlv(0x0A02, &[b'x'; 1_025])].concat());
    add("refusal_text_long", "1,025 bytes", odd, InvalidIntent);
    bad_lists(c);
}

#[rustfmt::skip] // One case a line.
fn bad_lists(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, Malformed};
    let list = Kind::Answer(asked(MessageType::LeaseList));
    let mut add = |name: &str, about: &str, payload: &[u8], error| {
        let bytes = frame(REPLY, 0x0204, &[&[0, 0], payload].concat());
        bad(c, &format!("bad_answer_list_{name}"), list, about, bytes, error);
    };
    add("count_129", "more leases than a page has", &[0, 0, 129], Malformed);
    add("count_128", "leases that are not there", &[0, 0, 128], Malformed);
    add("presence_2", "2 for a next id", &[2, 0, 0], InvalidArgs);
    let revoke = Kind::Answer(asked(MessageType::LeaseRevoke));
    let bytes = frame(REPLY, 0x020A, &[0, 0, 3]);
    bad(c, "bad_answer_revoke_3", revoke, "an unknown outcome", bytes, InvalidArgs);
}
