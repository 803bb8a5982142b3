//! Params that are refused: reserved, truncated, repeated, meaningless.

use fabricbios_wire::*;

use super::*;

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_classes(c: &mut Vec<Case>) {
    for (word, tag, bytes) in [
        (
            "cpu_isolation",
            0x0902,
            [0x03, 0x04, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        (
            "gpu_exclusivity",
            0x0903,
            [0x04, 0x05, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        ("transport", 0x0904, [0x06, 0x07, 0x7F, 0x80, 0xFE, 0xFF]),
        (
            "rotate_on_renew",
            0x0905,
            [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        ("read_only", 0x0906, [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF]),
        ("mutual_auth", 0x0907, [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF]),
        (
            "cpu_execution_mode",
            0x0908,
            [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        ("explain", 0x0912, [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF]),
        ("redirect", 0x090F, [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF]),
        (
            "gpu_execution_mode",
            0x090C,
            [0x02, 0x03, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        // 0 is the partition that shares its CPUs; a request never names it.
        (
            "cpu_partition",
            0x090A,
            [0x00, 0x03, 0x7F, 0x80, 0xFE, 0xFF],
        ),
        (
            "net_hand_over",
            0x0412,
            [0x03, 0x04, 0x7F, 0x80, 0xFE, 0xFF],
        ),
    ] {
        for byte in bytes {
            let name = format!("{word}_{byte:02x}");
            bad_tlv(c, &name, "a reserved byte fails closed", tlv(tag, &[byte]));
        }
        bad_tlv(c, &format!("{word}_length_0"), "length 0", tlv(tag, &[]));
        bad_tlv(c, &format!("{word}_length_2"), "length 2", tlv(tag, &[0, 0]));
        bad_tlv(c, &format!("{word}_truncated"), "no value", tlv(tag, &[0])[..4].to_vec());
        bad_tlv(c, &format!("{word}_twice"), "the tag again", tlv(tag, &[1]).repeat(2));
    }
}

pub(super) fn bad_tlv(c: &mut Vec<Case>, name: &str, about: &str, bytes: Vec<u8>) {
    let name = format!("bad_tlv_{name}");
    bad(c, &name, Kind::Tlv, about, bytes, LeaseError::InvalidIntent);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_tlvs(c: &mut Vec<Case>) {
    let malformed = LeaseError::Malformed;
    for (name, bytes) in [
        ("header_1", &[9][..]),
        ("header_3", &[9, 0x99, 0]),
        ("unknown_cut", &[9, 0x99, 0, 1]),
    ] {
        let name = format!("bad_tlv_{name}");
        bad(c, &name, Kind::Tlv, "runs out of the params", bytes.to_vec(), malformed);
    }
    let about = "a tag that is known in other areas runs out of the params";
    bad_tlv(c, "known_elsewhere_cut", about, vec![1, 2, 0, 32, 7]);
    let token = |value: &[u8]| tlv(0x090E, value);
    bad_tlv(c, "request_token_zero", "all bytes are zero", token(&[0; 16]));
    bad_tlv(c, "request_token_length_0", "length 0", token(&[]));
    bad_tlv(c, "request_token_length_15", "length 15", token(&[1; 15]));
    bad_tlv(c, "request_token_length_17", "length 17", token(&[1; 17]));
    bad_tlv(c, "request_token_truncated", "3 bytes of 16", token(&[1; 16])[..7].to_vec());
    bad_tlv(c, "request_token_twice", "the tag again", token(&[1; 16]).repeat(2));
    let kv = |value: &[u8]| tlv(0x0901, value);
    bad_tlv(c, "kv_cache_version_0", "version 0", kv(&[0, 0, 0, 0, 0, 0, 0, 1]));
    bad_tlv(c, "kv_cache_version_2", "version 2", kv(&[2, 0, 0, 0, 0, 0, 0, 1]));
    bad_tlv(c, "kv_cache_tier_3", "tier 3", kv(&[1, 3, 0, 0, 0, 0, 0, 1]));
    bad_tlv(c, "kv_cache_reserved", "reserved 1", kv(&[1, 0, 0, 1, 0, 0, 0, 1]));
    bad_tlv(c, "kv_cache_length_7", "length 7", kv(&[1, 0, 0, 0, 0, 0, 0]));
    bad_tlv(c, "kv_cache_length_9", "length 9", kv(&[1, 0, 0, 0, 0, 0, 0, 1, 0]));
    bad_tlv(c, "kv_cache_twice", "the tag again", kv(&[1, 0, 0, 0, 0, 0, 0, 1]).repeat(2));
    let near = |value: &[u8]| tlv(0x0910, value);
    bad_tlv(c, "affinity_category_0", "category 0", near(&[0, 1, 4, 0, 1, b'x']));
    bad_tlv(c, "affinity_category_6", "category 6", near(&[6, 1, 4, 0, 1, b'x']));
    bad_tlv(c, "affinity_strength_0", "strength 0", near(&[1, 0, 4, 0, 1, b'x']));
    bad_tlv(c, "affinity_strength_4", "strength 4", near(&[1, 4, 4, 0, 1, b'x']));
    bad_tlv(c, "affinity_target_type_0", "type 0", near(&[1, 1, 0, 0, 1, b'x']));
    bad_tlv(c, "affinity_target_type_5", "type 5", near(&[1, 1, 5, 0, 1, b'x']));
    bad_tlv(c, "affinity_target_len", "target_len is wrong", near(&[1, 1, 4, 0, 2, b'x']));
    bad_tlv(c, "affinity_cut", "4 bytes", near(&[1, 1, 4, 0]));
    bad_tlv(c, "affinity_label_empty", "an empty label", near(&[1, 1, 4, 0, 0]));
    bad_tlv(c, "affinity_label_not_utf8", "0xff", near(&[1, 1, 4, 0, 1, 0xFF]));
    let long = [&[1, 1, 4, 1, 0][..], &[b'x'; 256]].concat();
    bad_tlv(c, "affinity_label_long", "256 bytes", near(&long));
    bad_tlv(
        c,
        "affinity_id_zero",
        "a resource id of zero",
        near(&[&[1, 1, 1, 0, 16][..], &[0; 16]].concat()),
    );
    let tried = |status: u16, class: u8| {
        tlv(0x0911, &[&[7; 32][..], &status.to_be_bytes(), &[class]].concat())
    };
    bad_tlv(c, "tried_status_15", "a status of no refusal", tried(15, 1));
    bad_tlv(c, "tried_status_ffff", "an unknown status", tried(0xFFFF, 1));
    bad_tlv(c, "tried_class_3", "class 3", tried(4, 3));
    bad_tlv(c, "tried_length_34", "length 34", tlv(0x0911, &[1; 34]));
    bad_tlv(c, "tried_length_36", "length 36", tlv(0x0911, &[1; 36]));
    bad_tlv(c, "tried_truncated", "a value of 3 bytes", tried(4, 1)[..7].to_vec());
    bad_tlv(c, "tried_17", "one more than 16", tried(4, 1).repeat(17));
    bad_tlv(c, "affinity_17", "one more than 16", near(&[1, 1, 4, 0, 1, b'x']).repeat(17));
}
