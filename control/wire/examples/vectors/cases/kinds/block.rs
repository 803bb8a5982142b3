//! Block storage.

use super::*;

pub(crate) fn cases(c: &mut Vec<Case>) {
    let plain = &samples::alloc(ResourceType::Mem);
    terms(c, plain);
    bad_hosts(c);
    leases(c);
    bad_leases(c);
}

#[rustfmt::skip] // One case a line.
fn terms(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let with = |block: BlockTerms| plain.clone().with_terms(block);
    let all = block_terms();
    params(c, "block_all", "all that is asked of block storage", &with(all.clone()));
    let longest = nqn(&format!("nqn.2026-12.org.example:{:a<199}", ""));
    let named = BlockTerms { host_nqn: longest, ..BlockTerms::default() };
    params(c, "host_nqn_223", "the longest NQN", &with(named));
    let host = BlockTerms { host_id: all.host_id, ..BlockTerms::default() };
    params(c, "host_id", "a host identifier alone", &with(host));
    let read_only = BlockTerms { read_only: true, ..BlockTerms::default() };
    params(c, "read_only_01", "nothing can be written", &with(read_only));
    let mutual_auth = BlockTerms { mutual_auth: true, ..BlockTerms::default() };
    params(c, "mutual_auth_01", "the node proves itself too", &with(mutual_auth));
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

#[rustfmt::skip] // One case a line.
fn leases(c: &mut Vec<Case>) {
    use MessageType as M;
    let about = "a lease of block storage over NVMe-oF";
    let block = block_lease(Transport::NvmeTcp, nvmeof());
    answer(c, "lease_nvmeof", about, M::LeaseAlloc, Reply::Lease(block));
    let about = "a lease of block storage with every part: three addresses, both secrets, both transports";
    answer(c, "lease_block_full", about, M::LeaseQuery, Reply::Lease(full_block_lease()));
}

#[rustfmt::skip] // One case a line.
fn bad_leases(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut block = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = block_lease(Transport::NvmeTcp, nvmeof());
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

/// Every term for block storage.
pub(crate) fn block_terms() -> BlockTerms {
    BlockTerms {
        read_only: true,
        host_nqn: nqn("nqn.2014-08.org.nvmexpress:uuid:31323334-3536-3738-393a-3b3c3d3e3f40"),
        host_id: HostId::new(core::array::from_fn(|n| {
            0x31 + u8::try_from(n).unwrap_or(0)
        })),
        mutual_auth: true,
    }
}

pub(crate) fn nqn(text: &str) -> Option<Nqn> {
    text.parse().ok()
}

/// A lease of block storage over NVMe-oF; `None` never happens.
pub(crate) fn nvmeof() -> Option<NvmeofBinding> {
    Some(NvmeofBinding {
        addresses: vec![nvmeof_address(NvmeofTransport::Tcp, gid(7), 4_420)],
        subsystem: nqn("nqn.2025-01.io.fabricbios:lease:101112131415161718191a1b1c1d1e1f")?,
        nsid: 1,
        host_nqn: nqn("nqn.2014-08.org.nvmexpress:uuid:41424344-4546-4748-494a-4b4c4d4e4f50")?,
        host_id: HostId::new(core::array::from_fn(|n| {
            0x41 + u8::try_from(n).unwrap_or(0)
        }))?,
        dhchap_secret: DhchapSecret::new(
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+RJTBq:",
        )?,
        dhchap_ctrl_secret: None,
        ctrl_loss_secs: 10,
        block_bytes: 512,
    })
}

/// The same with every part: several addresses, mutual authentication, blocks of 4,096 bytes.
pub(crate) fn full_nvmeof() -> Option<NvmeofBinding> {
    let v6 = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    Some(NvmeofBinding {
        addresses: vec![
            nvmeof_address(NvmeofTransport::Rdma, gid(7), 4_421),
            nvmeof_address(NvmeofTransport::Tcp, gid(7), 4_420),
            nvmeof_address(NvmeofTransport::Tcp, v6, 4_422),
        ],
        dhchap_ctrl_secret: DhchapSecret::new(
            "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/nABIc:",
        ),
        ctrl_loss_secs: NVMEOF_CTRL_LOSS_SECS_MAX,
        block_bytes: 4_096,
        ..nvmeof()?
    })
}

fn nvmeof_address(transport: NvmeofTransport, addr: [u8; 16], port: u16) -> NvmeofAddress {
    let endpoint = Endpoint { addr, port };
    NvmeofAddress {
        transport,
        endpoint,
    }
}

/// A lease of `blocks` of storage over this transport.
pub(crate) fn block_lease(transport: Transport, nvmeof: Option<NvmeofBinding>) -> LeaseInfo {
    let length = nvmeof
        .as_ref()
        .map_or(0, |it| 0x0010_0000 / u64::from(it.block_bytes));
    let effective = Effective {
        transport: Some(transport),
        ..Effective::default()
    };
    LeaseInfo {
        effective,
        ..lease(Binding {
            limits: Some(Limits { offset: 0, length }),
            kind: KindBinding::Block(nvmeof.map(Box::new)),
            ..Binding::plain(ResourceType::Block)
        })
    }
}

/// A lease of block storage with every part, on two transports.
pub(crate) fn full_block_lease() -> LeaseInfo {
    let mut lease = block_lease(Transport::Both, full_nvmeof());
    lease.effective.read_only = true;
    lease.effective.mutual_auth = true;
    let full = full_lease().binding;
    lease.binding.dp_key = full.dp_key;
    lease.binding.udp_endpoint = full.udp_endpoint;
    lease
}
