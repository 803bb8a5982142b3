//! Answers that a client refuses.

use fabricbios_wire::*;

use super::*;
use crate::samples;

/// The TLVs of a valid lease answer; the TLV of `tag` is replaced or left out.
pub(super) fn damaged_lease(lease: LeaseInfo, tag: u16, instead: &[u8]) -> Vec<u8> {
    let whole = encode_answer(&asked(MessageType::LeaseQuery), &Ok(Reply::Lease(lease)));
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
    add("status_16", "an unknown status", changed(21, 16), InvalidArgs);
    add("lease_status_3", "an unknown lease status", changed(56, 3), InvalidArgs);
    add("lease_phase_7", "an unknown phase", changed(57, 7), InvalidArgs);
    add("lease_cut", "only the fixed part", frame(REPLY, 0x0202, &whole[20..110]), Malformed);
    let longer = frame(REPLY, 0x0202, &[&whole[20..], &[0]].concat());
    add("lease_trailing", "a byte after the lease", longer, Malformed);
    let mut tag = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        add(name, about, damaged_lease(samples::full_lease(), tag, instead), InvalidIntent);
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
    bad_intents(c);
    bad_ends(c);
    bad_lists(c);
}

/// A client checks an intent in an answer as a node checks one in a request.
#[rustfmt::skip] // One case a line.
fn bad_intents(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let lease = LeaseInfo {
        intent: Some(Box::new(LeaseIntent { affinities: vec![], ..samples::intent() })),
        ..samples::rdma_lease()
    };
    let mut add = |name: &str, about: &str, instead: &[u8]| {
        let bytes = damaged_lease(lease.clone(), 0x0901, instead);
        bad(c, &format!("bad_answer_intent_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    let zero = [tlv(0x0901, &[1, 0, 0, 0, 0, 0, 0, 1]), tlv(0x090E, &[0; 16])].concat();
    add("request_token_zero", "all bytes are zero", &zero);
    add("kv_cache_tier_3", "tier 3", &tlv(0x0901, &[1, 3, 0, 0, 0, 0, 0, 1]));
    add("kv_cache_twice", "the tag again", &tlv(0x0901, &[1, 0, 0, 0, 0, 0, 0, 1]).repeat(2));
    let near = tlv(0x0910, &[1, 1, 4, 0, 1, b'x']);
    add("affinity_17", "one more than 16", &near.repeat(17));
    add("affinity_category_6", "category 6", &tlv(0x0910, &[6, 1, 4, 0, 1, b'x']));
}

#[rustfmt::skip] // One case a line.
fn bad_ends(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut lease = samples::revoked_lease();
    lease.end.iter_mut().map(std::sync::Arc::make_mut).for_each(|end| {
        end.proof.truncate(1);
        end.cleaning.clear();
    });
    let mut add = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let bytes = damaged_lease(lease.clone(), tag, instead);
        bad(c, &format!("bad_answer_end_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    let tenant = |text: &[u8]| tlv(0x0C01, text);
    add("tenant_65", "one byte too many", 0x0C01, &tenant(&[b'a'; 65]));
    add("tenant_not_utf8", "0xff", 0x0C01, &tenant(b"team-\xff"));
    add("tenant_twice", "the tag again", 0x0C01, &tenant(b"team-a").repeat(2));
    let end = |cause: u8, by: &[u8]| tlv(0x0C02, &[&[0; 8][..], &[cause], by].concat());
    add("length_8", "no cause", 0x0C02, &tlv(0x0C02, &[0; 8]));
    for cause in [8, 0x7F, 0xFF] {
        add(&format!("cause_{cause:02x}"), "an unknown cause", 0x0C02, &end(cause, b""));
    }
    add("by_65", "one byte too many", 0x0C02, &end(2, &[b'a'; 65]));
    add("by_not_utf8", "half a character", 0x0C02, &end(2, &[0xC3]));
    add("twice", "the tag again", 0x0C02, &end(2, b"anna").repeat(2));
    let step = |length: u8, rest: &[u8]| tlv(0x0C03, &[&[0, 0, 0, 9, length][..], rest].concat());
    add("steps_65", "one more than 64", 0x0C03, &step(4, b"step").repeat(65));
    let cleaned = tlv(0x0C04, b"\0\0\0\x09\x04step");
    add("cleaning_17", "one more than 16", 0x0C03, &cleaned.repeat(17));
    add("cleaning_length_4", "no length of the name", 0x0C03, &tlv(0x0C04, &[0; 4]));
    let mut bad_step = |name: &str, about: &str, instead: &[u8]| {
        add(&format!("step_{name}"), about, 0x0C03, instead);
    };
    bad_step("length_4", "no length of the name", &tlv(0x0C03, &[0; 4]));
    bad_step("name_overruns", "a name of 5 bytes, of which 4 are there", &step(5, b"step"));
    bad_step("name_65", "a name one byte too long", &step(65, &[b's'; 65]));
    bad_step("name_not_utf8", "0xff", &step(4, b"ste\xfffound"));
    bad_step("name_splits", "the name ends within a character", &step(1, "é".as_bytes()));
    bad_step("found_257", "one byte too many", &step(4, &[b's'; 261]));
    bad_step("found_not_utf8", "0xff", &step(4, b"stepfoun\xff"));
    bad_step("second", "the second one is none", &[step(0, b""), tlv(0x0C03, &[0])].concat());
    bad_step("truncated", "a length that runs out of the area", &step(4, b"step")[..10]);
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
