//! Network functions.

use super::*;

pub(crate) fn cases(c: &mut Vec<Case>) {
    let plain = &samples::alloc(ResourceType::Mem);
    terms(c, plain);
    bad_terms(c);
    leases(c);
    bad_leases(c);
}

#[rustfmt::skip] // One case a line.
fn terms(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let none = NetTerms::default;
    let mut add = |name: &str, about: &str, terms: NetTerms| {
        params(c, &format!("net_{name}"), about, &plain.clone().with_terms(terms));
    };
    add("all", "all that is asked of a network function", net_terms());
    add("mac", "a MAC address alone", NetTerms { mac: net_terms().mac, ..none() });
    for vlan in [1, 4_094] {
        let terms = NetTerms { vlan: VlanId::new(vlan), ..none() };
        add(&format!("vlan_{vlan}"), "the first and the last VLAN", terms);
    }
    for hand_over in HandOver::ALL {
        let terms = NetTerms { hand_over: Some(*hand_over), ..none() };
        add(&format!("hand_over_{hand_over}"), "how the tenant gets it", terms);
    }
}

#[rustfmt::skip] // One case a line.
fn bad_terms(c: &mut Vec<Case>) {
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
fn leases(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, lease: LeaseInfo| {
        answer(c, &format!("lease_net{name}"), about, MessageType::LeaseAlloc, Reply::Lease(lease));
    };
    let best = net_lease(net_binding(), Enforcement::BestEffort);
    add("", "an interface whose rate is only asked for", best);
    let full = net_lease(full_net_binding(), Enforcement::Enforced);
    add("_full", "every coordinate of a network function", full.clone());
    for hand_over in HandOver::ALL {
        let binding = NetBinding { hand_over: *hand_over, ..net_binding() };
        let lease = net_lease(binding, Enforcement::Enforced);
        add(&format!("_{hand_over}"), "how the tenant gets it", lease);
    }
    add("_without_place", "a lease that has no function yet", LeaseInfo {
        binding: Binding::plain(ResourceType::Net),
        ..full
    });
}

#[rustfmt::skip] // One case a line.
fn bad_leases(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut net = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = net_lease(full_net_binding(), Enforcement::Enforced);
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

/// Every term for a network function.
pub(crate) fn net_terms() -> NetTerms {
    NetTerms {
        mac: Some(MacAddress([0x02, 0x71, 0x72, 0x73, 0x74, 0x75])),
        vlan: VlanId::new(0x0ABC),
        hand_over: Some(HandOver::Vfio),
    }
}

/// An interface on the node.
pub(crate) fn net_binding() -> NetBinding {
    NetBinding {
        pci_function: None,
        interface: Some("fb10111213n0".to_owned()),
        mac: MacAddress([0x02, 0x71, 0x72, 0x73, 0x74, 0x75]),
        vlan: None,
        rate_bps: 0x0102_0304_0506,
        hand_over: HandOver::Interface,
        vfio_group: None,
        cdi_device: None,
    }
}

/// A virtual function with every part.
pub(crate) fn full_net_binding() -> NetBinding {
    NetBinding {
        pci_function: PciFunction::parse("0102:03:11.5"),
        vlan: VlanId::new(0x0ABC),
        hand_over: HandOver::Vfio,
        vfio_group: Some(0x0001_0203),
        cdi_device: Some("fabricbios.io/net=101112131415161718191a1b1c1d1e1f".to_owned()),
        ..net_binding()
    }
}

pub(crate) fn net_lease(binding: NetBinding, rate: Enforcement) -> LeaseInfo {
    LeaseInfo {
        capacity: binding.rate_bps,
        effective: Effective {
            net_rate: Some(rate),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Net(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Net)
        })
    }
}
