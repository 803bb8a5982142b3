//! Params that are refused: reserved, truncated, repeated, meaningless.

use fabricbios_wire::*;

use super::*;
use crate::samples;

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

fn bad_tlv(c: &mut Vec<Case>, name: &str, about: &str, bytes: Vec<u8>) {
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
    bad_tlv(c, "gpu_compute_slices_0", "no slice", tlv(0x090D, &[0, 0]));
    bad_tlv(c, "gpu_compute_slices_length_1", "length 1", tlv(0x090D, &[1]));
    bad_tlv(c, "gpu_compute_slices_length_3", "length 3", tlv(0x090D, &[0, 1, 0]));
    bad_tlv(c, "gpu_compute_slices_twice", "the tag again", tlv(0x090D, &[0, 1]).repeat(2));
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
    bad_tlv(c, "affinity_17", "one more than 16", near(&[1, 1, 4, 0, 1, b'x']).repeat(17));
    let peer = |qpn: u32, psn: u32, mtu: u16, reserved: u8| {
        let (qpn, psn, mtu) = (qpn.to_be_bytes(), psn.to_be_bytes(), mtu.to_be_bytes());
        tlv(
            0x0210,
            &[&qpn[..], &psn, &samples::gid(9), &mtu, &[0, reserved]].concat(),
        )
    };
    bad_tlv(c, "rdma_peer_qpn_0", "queue pair 0", peer(0, 1, 1024, 0));
    bad_tlv(c, "rdma_peer_qpn_25_bits", "0x1000000", peer(0x0100_0000, 1, 1024, 0));
    bad_tlv(c, "rdma_peer_psn_25_bits", "0x1000000", peer(1, 0x0100_0000, 1024, 0));
    bad_tlv(c, "rdma_peer_mtu_1500", "not an InfiniBand MTU", peer(1, 1, 1500, 0));
    bad_tlv(c, "rdma_peer_reserved", "reserved 1", peer(1, 1, 1024, 1));
    bad_tlv(c, "rdma_peer_length_27", "27 bytes", tlv(0x0210, &peer(1, 1, 1024, 0)[4..31]));
    bad_tlv(c, "rdma_peer_9", "one more than 8", peer(1, 1, 1024, 0).repeat(9));
    let second = [peer(1, 1, 1024, 0), peer(0, 1, 1024, 0)].concat();
    bad_tlv(c, "rdma_peer_second", "the second one is queue pair 0", second);
    bad_hosts(c);
    bad_cpu(c);
    bad_net(c);
}

#[rustfmt::skip] // One case a line.
fn bad_cpu(c: &mut Vec<Case>) {
    let mut width = |name: &str, about: &str, bytes: Vec<u8>| {
        bad_tlv(c, &format!("cpu_execution_width_{name}"), about, bytes);
    };
    width("0", "no thread", tlv(0x0909, &[0, 0]));
    width("length_0", "length 0", tlv(0x0909, &[]));
    width("length_1", "length 1", tlv(0x0909, &[1]));
    width("length_3", "length 3", tlv(0x0909, &[0, 0, 1]));
    width("truncated", "a byte is missing", tlv(0x0909, &[0, 1])[..5].to_vec());
    width("twice", "the tag again", tlv(0x0909, &[0, 1]).repeat(2));
}

#[rustfmt::skip] // One case a line.
fn bad_net(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, bytes: Vec<u8>| {
        bad_tlv(c, &format!("net_{name}"), about, bytes);
    };
    let mac = [2, 0, 0, 0, 0, 1];
    add("mac_zero", "nobody's address", tlv(0x0410, &[0; 6]));
    add("mac_broadcast", "everybody's address", tlv(0x0410, &[0xFF; 6]));
    add("mac_multicast", "a group's address", tlv(0x0410, &[1, 0, 0x5E, 0, 0, 1]));
    add("mac_length_5", "5 bytes", tlv(0x0410, &mac[..5]));
    add("mac_length_7", "7 bytes", tlv(0x0410, &[2; 7]));
    add("mac_truncated", "a byte is missing", tlv(0x0410, &mac)[..9].to_vec());
    add("mac_twice", "the tag again", tlv(0x0410, &mac).repeat(2));
    for vlan in [0, 4_095, 4_096, u16::MAX] {
        let about = "802.1Q reserves 0 and 4095; more are not ids";
        add(&format!("vlan_{vlan}"), about, tlv(0x0411, &vlan.to_be_bytes()));
    }
    add("vlan_length_1", "1 byte", tlv(0x0411, &[1]));
    add("vlan_length_3", "3 bytes", tlv(0x0411, &[0, 0, 1]));
    add("vlan_truncated", "a byte is missing", tlv(0x0411, &[0, 1])[..5].to_vec());
    add("vlan_twice", "the tag again", tlv(0x0411, &[0, 1]).repeat(2));
}

#[rustfmt::skip] // One case a line.
fn bad_hosts(c: &mut Vec<Case>) {
    let mut host = |name: &str, about: &str, text: &[u8]| {
        bad_tlv(c, &format!("host_nqn_{name}"), about, tlv(0x0310, text));
    };
    host("empty", "no name", b"");
    host("prefix", "it does not begin with nqn.", b"iqn.2014-08.org.example:a");
    host("date_cut", "a year alone", b"nqn.2014.org.example:a");
    host("month_00", "month 00", b"nqn.2014-00.org.example:a");
    host("month_13", "month 13", b"nqn.2014-13.org.example:a");
    host("date_letters", "letters for a date", b"nqn.20l4-08.org.example:a");
    host("no_domain", "nothing after the date", b"nqn.2014-08.");
    host("domain_dot", "an empty part", b"nqn.2014-08..example:a");
    host("path", "a path", b"nqn.2014-08.org.example:../../hosts/a");
    host("absolute", "a path", b"/etc/passwd");
    host("comma", "would be another option of the kernel's", b"nqn.2014-08.org.example:a,hostid=b");
    host("space", "two words", b"nqn.2014-08.org.example:a b");
    host("quote", "not one word of a shell", b"nqn.2014-08.org.example:a;b");
    host("zero_byte", "a name that C cuts", b"nqn.2014-08.org.example:a\0b");
    host("not_ascii", "an é", "nqn.2014-08.org.example:é".as_bytes());
    host("not_utf8", "0xff", b"nqn.2014-08.org.example:\xff");
    host("224", "one byte too many", format!("nqn.2026-12.org.example:{:a<200}", "").as_bytes());
    let good = tlv(0x0310, b"nqn.2014-08.org.example:a");
    bad_tlv(c, "host_nqn_twice", "the tag again", good.repeat(2));
    bad_tlv(c, "host_nqn_truncated", "a byte is missing", good[..good.len() - 1].to_vec());
    bad_tlv(c, "host_id_zero", "the identifier of nobody", tlv(0x0311, &[0; 16]));
    bad_tlv(c, "host_id_15", "15 bytes", tlv(0x0311, &[1; 15]));
    bad_tlv(c, "host_id_17", "17 bytes", tlv(0x0311, &[1; 17]));
    bad_tlv(c, "host_id_twice", "the tag again", tlv(0x0311, &[1; 16]).repeat(2));
}
