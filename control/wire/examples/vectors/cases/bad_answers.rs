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
    add("status_15", "an unknown status", changed(21, 15), InvalidArgs);
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
    bad_nvmeof(c);
    bad_cpu(c);
    bad_net(c);
    bad_intents(c);
    bad_ends(c);
    bad_lists(c);
}

#[rustfmt::skip] // One case a line.
fn bad_nvmeof(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut block = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = samples::block_lease(Transport::NvmeTcp, samples::nvmeof());
        let bytes = damaged_lease(lease, tag, instead);
        bad(c, &format!("bad_answer_nvmeof_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in [0x0301, 0x0302, 0x0303, 0x0304, 0x0305, 0x0306, 0x0308, 0x0309] {
        block(&format!("without_{missing:04x}"), "an NVMe-oF tag is missing", missing, &[]);
    }
    let address = |trtype: u8, host: [u8; 4], port: u16| {
        let v4 = [&[trtype][..], &[0; 10], &[0xFF; 2], &host, &port.to_be_bytes()].concat();
        tlv(0x0301, &v4)
    };
    let here = [192, 0, 2, 7];
    for trtype in [0, 2, 4, 0xFE, 0xFF] {
        let about = "neither RDMA nor TCP";
        block(&format!("trtype_{trtype:02x}"), about, 0x0301, &address(trtype, here, 4_420));
    }
    block("wildcard_v4", "0.0.0.0:4420 as v4-mapped", 0x0301, &address(3, [0; 4], 4_420));
    block("port_0", "port 0", 0x0301, &address(3, here, 0));
    let v6 = tlv(0x0301, &[&[3][..], &[0; 16], &[17, 68]].concat());
    block("wildcard_v6", "[::]:4420", 0x0301, &v6);
    block("addresses_9", "one more than 8", 0x0301, &address(3, here, 4_420).repeat(9));
    let second = [address(3, here, 4_420), address(2, here, 4_420)].concat();
    block("second_address", "the second one is of no known kind", 0x0301, &second);
    block("address_18", "18 bytes", 0x0301, &tlv(0x0301, &address(3, here, 4_420)[4..22]));
    block("nsid_0", "no namespace", 0x0303, &tlv(0x0303, &[0; 4]));
    block("nsid_all", "every namespace", 0x0303, &tlv(0x0303, &[0xFF; 4]));
    for tag in [0x0302, 0x0304] {
        let path = tlv(tag, b"nqn.2014-08.org.example:../a");
        block(&format!("path_{tag:04x}"), "a path", tag, &path);
        let twice = tlv(tag, b"nqn.2014-08.org.example:a").repeat(2);
        block(&format!("twice_{tag:04x}"), "the tag again", tag, &twice);
    }
    block("host_id_zero", "the identifier of nobody", 0x0305, &tlv(0x0305, &[0; 16]));
    let secret = |text: &[u8]| tlv(0x0306, text);
    block("secret_empty", "no secret", 0x0306, &secret(b""));
    block("secret_form", "no hash and no key", 0x0306, &secret(b"DHHC-1:"));
    block("secret_hash_04", "an unknown hash", 0x0306, &secret(b"DHHC-1:04:AAEC:"));
    block("secret_without_key", "an empty key", 0x0306, &secret(b"DHHC-1:00::"));
    block("secret_open", "no colon at the end", 0x0306, &secret(b"DHHC-1:00:AAEC"));
    block("secret_comma", "would be another option", 0x0306, &secret(b"DHHC-1:00:AAEC,nqn=a:"));
    let long = format!("DHHC-1:00:{:A<118}:", "");
    block("secret_129", "one byte too many", 0x0306, &secret(long.as_bytes()));
    let ctrl = [&secret(b"DHHC-1:00:AAEC:")[..], &tlv(0x0307, b"secret")].concat();
    block("ctrl_secret", "0x0307 is no secret", 0x0306, &ctrl);
    block("ctrl_loss_31", "longer than a device may hang", 0x0308, &tlv(0x0308, &[0, 0, 0, 31]));
    block("ctrl_loss_ever", "for ever", 0x0308, &tlv(0x0308, &[0xFF; 4]));
    for bytes in [0_u32, 256, 513, 131_072] {
        let value = tlv(0x0309, &bytes.to_be_bytes());
        block(&format!("block_bytes_{bytes}"), "no size of a block", 0x0309, &value);
    }
}

#[rustfmt::skip] // One case a line.
fn bad_cpu(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut cpu = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = samples::cpu_lease(samples::full_cpu_binding());
        let bytes = damaged_lease(lease, tag, instead);
        bad(c, &format!("bad_answer_cpu_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in 0x0601..=0x0603 {
        cpu(&format!("without_{missing:04x}"), "a CPU tag is missing", missing, &[]);
    }
    for tag in 0x0601..=0x0605 {
        let good = match tag {
            0x0602 => tlv(tag, b"/a"),
            0x0603 => tlv(tag, &[1]),
            0x0605 => tlv(tag, &[1; 8]),
            _ => tlv(tag, &[0, 1, 0, 1]),
        };
        cpu(&format!("twice_{tag:04x}"), "the tag again", tag, &good.repeat(2));
        // The truncated TLV is the last one of the area.
        let cut = &good[..good.len() - 1];
        cpu(&format!("truncated_{tag:04x}"), "a length that runs out of the area", 0x090A, cut);
    }
    let ranges = |ranges: &[[u16; 2]]| -> Vec<u8> {
        ranges.iter().flatten().flat_map(|it| it.to_be_bytes()).collect()
    };
    for (word, tag) in [("cpus", 0x0601), ("nodes", 0x0604)] {
        let mut list = |name: &str, about: &str, value: &[u8]| {
            cpu(&format!("{word}_{name}"), about, tag, &tlv(tag, value));
        };
        list("touch", "two ranges that are one", &ranges(&[[0, 1], [2, 3]]));
        list("overlap", "a number twice", &ranges(&[[0, 2], [2, 3]]));
        list("again", "a range twice", &ranges(&[[0, 2], [0, 2]]));
        list("descend", "the greater range first", &ranges(&[[4, 5], [0, 1]]));
        list("backwards", "a range that ends before it begins", &ranges(&[[3, 2]]));
        list("after_the_last", "nothing comes after 65535", &ranges(&[[9, u16::MAX], [0, 0]]));
        list("length_3", "3 bytes", &[0, 0, 0]);
        list("length_6", "a range and a half", &[0, 0, 0, 0, 0, 2]);
        let many: Vec<[u16; 2]> = (0..=4_096).map(|n| [2 * n, 2 * n]).collect();
        list("4097", "one more range than 4,096", &ranges(&many));
    }
    cpu("cpus_none", "no CPU", 0x0601, &tlv(0x0601, &[]));
    cpu("cgroup_empty", "no path", 0x0602, &tlv(0x0602, b""));
    cpu("cgroup_513", "one byte too many", 0x0602, &tlv(0x0602, &[b'a'; 513]));
    cpu("cgroup_newline", "two lines", 0x0602, &tlv(0x0602, b"/a\n/b"));
    cpu("cgroup_not_ascii", "an é", 0x0602, &tlv(0x0602, "/é".as_bytes()));
    cpu("cgroup_not_utf8", "0xff", 0x0602, &tlv(0x0602, b"/\xff"));
    for byte in [3, 0x7F, 0xFF] {
        let value = tlv(0x0603, &[byte]);
        cpu(&format!("partition_{byte:02x}"), "a reserved byte fails closed", 0x0603, &value);
    }
    cpu("partition_length_2", "length 2", 0x0603, &tlv(0x0603, &[0, 1]));
    let quota = |quota: u32, period: u32| {
        tlv(0x0605, &[quota.to_be_bytes(), period.to_be_bytes()].concat())
    };
    cpu("quota_0", "no time at all", 0x0605, &quota(0, 100_000));
    cpu("period_0", "no period", 0x0605, &quota(100_000, 0));
    cpu("quota_length_7", "7 bytes", 0x0605, &tlv(0x0605, &[1; 7]));
    cpu("quota_length_9", "9 bytes", 0x0605, &tlv(0x0605, &[1; 9]));
    for (word, tag, byte) in [("isolation", 0x0902, 3), ("execution_mode", 0x0908, 2), ("partition", 0x090A, 3)] {
        let value = tlv(tag, &[byte]);
        cpu(&format!("echo_{word}_{byte:02x}"), "a reserved byte fails closed", tag, &value);
    }
    cpu("echo_partition_00", "what shares its CPUs has no echo", 0x090A, &tlv(0x090A, &[0]));
    cpu("echo_width_0", "no thread", 0x0909, &tlv(0x0909, &[0, 0]));
    cpu("echo_width_twice", "the tag again", 0x0909, &tlv(0x0909, &[0, 1]).repeat(2));
}

#[rustfmt::skip] // One case a line.
fn bad_net(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut net = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = samples::net_lease(samples::full_net_binding(), Enforcement::Enforced);
        let bytes = damaged_lease(lease, tag, instead);
        bad(c, &format!("bad_answer_net_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in [0x0403, 0x0405, 0x0406] {
        net(&format!("without_{missing:04x}"), "a NET tag is missing", missing, &[]);
    }
    for (tag, value) in [
        (0x0401, &[0, 0, 1, 0][..]),
        (0x0402, b"eth0"),
        (0x0403, &[2; 6]),
        (0x0404, &[0, 1]),
        (0x0405, &[1; 8]),
        (0x0406, &[1]),
        (0x0407, &[1; 4]),
        (0x0408, b"a/b=c"),
    ] {
        net(&format!("twice_{tag:04x}"), "the tag again", tag, &tlv(tag, value).repeat(2));
        let cut = &tlv(tag, value)[..3 + value.len()];
        net(&format!("truncated_{tag:04x}"), "a length that runs out of the area", 0x090B, cut);
        // Texts have no fixed length.
        if !matches!(tag, 0x0402 | 0x0408) {
            let (cut, long) = (&value[..value.len() - 1], [value, &[1]].concat());
            net(&format!("short_{tag:04x}"), "a byte is missing", tag, &tlv(tag, cut));
            net(&format!("long_{tag:04x}"), "a byte too many", tag, &tlv(tag, &long));
        }
    }
    for (name, about, text) in [
        ("empty", "no name", &b""[..]),
        ("16", "one byte too many", b"abcdefghijklmnop"),
        ("path", "a path", b"../eth0"),
        ("dot", "a folder", b"."),
        ("dots", "a folder", b".."),
        ("colon", "an alias", b"eth0:1"),
        ("space", "two words", b"eth 0"),
        ("zero_byte", "a name that C cuts", b"eth0\0"),
        ("not_utf8", "0xff", b"eth\xff"),
    ] {
        net(&format!("interface_{name}"), about, 0x0402, &tlv(0x0402, text));
    }
    net("mac_zero", "nobody's address", 0x0403, &tlv(0x0403, &[0; 6]));
    net("mac_multicast", "a group's address", 0x0403, &tlv(0x0403, &[1, 0, 0x5E, 0, 0, 1]));
    for vlan in [0_u16, 4_095] {
        let value = tlv(0x0404, &vlan.to_be_bytes());
        net(&format!("vlan_{vlan}"), "802.1Q reserves it", 0x0404, &value);
    }
    net("rate_0", "0 would be no limit", 0x0405, &tlv(0x0405, &[0; 8]));
    for byte in [3, 0x7F, 0xFF] {
        let value = tlv(0x0406, &[byte]);
        net(&format!("hand_over_{byte:02x}"), "a reserved byte fails closed", 0x0406, &value);
    }
    net("cdi_empty", "no name", 0x0408, &tlv(0x0408, b""));
    net("cdi_129", "one byte too many", 0x0408, &tlv(0x0408, &[b'a'; 129]));
    net("cdi_newline", "two lines", 0x0408, &tlv(0x0408, b"a/b=c\n"));
    for byte in [2, 0x7F, 0xFF] {
        let value = tlv(0x090B, &[byte]);
        net(&format!("rate_echo_{byte:02x}"), "a reserved byte fails closed", 0x090B, &value);
    }
    net("rate_echo_length_0", "length 0", 0x090B, &tlv(0x090B, &[]));
    net("rate_echo_twice", "the tag again", 0x090B, &tlv(0x090B, &[1]).repeat(2));
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
    lease.end.iter_mut().for_each(|end| {
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
