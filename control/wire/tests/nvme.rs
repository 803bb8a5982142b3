//! Names, identifiers and secrets of NVMe-oF: accepted forms, and texts that an error never repeats.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;

const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn binding() -> NvmeofBinding {
    NvmeofBinding {
        addresses: vec![NvmeofAddress {
            transport: NvmeofTransport::Tcp,
            endpoint: "192.0.2.7:4420"
                .parse::<std::net::SocketAddr>()
                .unwrap()
                .into(),
        }],
        subsystem: "nqn.2025-01.io.example:lease".parse().unwrap(),
        nsid: 1,
        host_nqn: "nqn.2025-01.io.example:host".parse().unwrap(),
        host_id: HostId::new([7; 16]).unwrap(),
        dhchap_secret: DhchapSecret::new(SECRET).unwrap(),
        dhchap_ctrl_secret: DhchapSecret::new(SECRET),
        ctrl_loss_secs: 5,
        block_bytes: 512,
    }
}

#[test]
fn names_that_are_in_use_are_taken() {
    for text in [
        "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "nqn.2014-08.org.nvmexpress.discovery",
        "nqn.1992-08.com.netapp:sn.d646dc63336511e995cb00a0988fb732:subsystem.one_1",
        "nqn.1988-11.com.dell:powerstore:00:30f0f0bbe5dcB1B9AF5A",
        &format!("nqn.2026-12.org.example:{:a<199}", ""),
    ] {
        let name: Nqn = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
        assert_eq!((name.as_str(), name.to_string()), (text, text.to_owned()));
    }
}

#[test]
fn names_that_could_be_anything_else_are_not() {
    for (text, why) in [
        ("", "no nqn. at the start"),
        ("iqn.2014-08.org.example:a", "no nqn. at the start"),
        ("NQN.2014-08.org.example:a", "no nqn. at the start"),
        ("nqn.2014-08.", "no date and domain"),
        ("nqn.2014-08", "no date and domain"),
        ("nqn.2014-13.org.example:a", "no date and domain"),
        ("nqn.2014-00.org.example:a", "no date and domain"),
        ("nqn.14-08.org.example:a", "no date and domain"),
        ("nqn.2014-08..:a", "no date and domain"),
        ("nqn.2014-08.org.example:../hosts", "a character"),
        ("nqn.2014-08.org.example:a,hostid=b", "a character"),
        ("nqn.2014-08.org.example:$(reboot)", "a character"),
        ("nqn.2014-08.org.example:a b", "a character"),
        ("nqn.2014-08.org.example:a\n", "a character"),
        ("nqn.2014-08.org.example:é", "a character"),
        (&format!("nqn.2026-12.org.example:{:a<200}", ""), "223"),
    ] {
        let error = text.parse::<Nqn>().unwrap_err().to_string();
        assert!(
            error.starts_with(why) || error.contains(why),
            "{text}: {error}"
        );
        assert!(error.contains("nqn.yyyy-mm.reverse.domain:text"), "{error}");
    }
}

#[test]
fn a_name_that_is_a_uuid_tells_it() {
    let uuid = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    let name: Nqn = format!("{UUID_PREFIX}{uuid}").parse().unwrap();
    assert_eq!(name.uuid().unwrap().to_string(), uuid);
    let other: Nqn = "nqn.2025-01.io.example:host".parse().unwrap();
    assert_eq!(other.uuid(), None);
}

#[test]
fn host_identifiers_are_uuids_of_somebody() {
    let id: HostId = "3F0C5F5E-93A2-4A5B-8D7C-0C1D2E3F4A5B".parse().unwrap();
    assert_eq!(id.to_string(), "3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b");
    for text in [
        "",
        "3f0c5f5e93a24a5b8d7c0c1d2e3f4a5b",
        "3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5",
        "3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b0",
        "{3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b}",
        "urn:uuid:3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b",
        "3f0c5f5e-93a2-4a5b-8d7c0-c1d2e3f4a5b",
        "3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5g",
        "3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4aé",
        "00000000-0000-0000-0000-000000000000",
    ] {
        let error = text.parse::<HostId>().unwrap_err().to_string();
        assert!(error.contains("UUID"), "{error}");
    }
}

#[test]
fn a_secret_has_its_form_or_is_none() {
    assert_eq!(DhchapSecret::new(SECRET).unwrap().reveal(), SECRET);
    for text in [
        "",
        "DHHC-1:",
        "DHHC-1:00:",
        "DHHC-1:00::",
        "DHHC-1:04:AAEC:",
        "DHHC-1:0:AAEC:",
        "DHHC-2:00:AAEC:",
        "DHHC-1:00:AAEC",
        "DHHC-1:00:AA:EC:",
        "DHHC-1:00:AA,EC:",
        "DHHC-1:00:AA EC:",
        &format!("DHHC-1:00:{:A<118}:", ""),
    ] {
        assert_eq!(DhchapSecret::new(text), None, "{text}");
    }
}

/// A LEASE_QUERY, and an answer to it: a lease of block storage.
fn block_answer() -> (Header, Vec<u8>) {
    let header = Header {
        flags: 0,
        msg_type: MessageType::LeaseQuery as u16,
        request_id: 1,
        nonce: 2,
        payload_len: 0,
    };
    let lease = LeaseInfo {
        lease_id: LeaseId(1),
        resource_id: ResourceId(1),
        status: LeaseStatus::Active,
        phase: LeasePhase::Active,
        generation: Generation(1),
        capacity: 512,
        granted_at_unix_ms: 0,
        expires_at_unix_ms: 0,
        renewable_at_unix_ms: 0,
        grace_ends_unix_ms: 0,
        remaining_ms: 0,
        effective: Effective::default(),
        binding: Binding {
            kind: KindBinding::Block(Some(Box::new(binding()))),
            ..Binding::plain(ResourceType::Block)
        },
        tenant: None,
        end: None,
        intent: None,
        request_token: None,
    };
    let frame = encode_answer(&header, &Ok(Reply::Lease(lease)));
    (header, frame)
}

#[test]
fn no_secret_is_ever_printed() {
    let shown = format!("{:?}", binding());
    assert!(!shown.contains("DHHC-1"), "{shown}");
    assert!(shown.contains("DhchapSecret(..)"), "{shown}");
    let (header, mut frame) = block_answer();
    let places: Vec<usize> = (0..frame.len() - 7)
        .filter(|at| frame[*at..].starts_with(b"DHHC-1:"))
        .collect();
    assert_eq!(places.len(), 2);
    for at in places {
        frame[at] = b'X';
        let error = decode_answer(&header, &frame).unwrap_err();
        assert_eq!(error.error.lease_error(), LeaseError::InvalidIntent);
        let said = format!("{error:?} {}", error.error);
        assert!(!said.contains("ia6zGodOr4SEG0"), "{said}");
        frame[at] = b'D';
    }
}

#[test]
fn coordinates_of_another_kind_are_checked_and_left_out() {
    let (header, mut frame) = block_answer();
    let block = 3_u16.to_be_bytes();
    let before = [1_u128.to_be_bytes(); 2].concat();
    let at = (0..frame.len() - 34).find(|at| frame[*at..].starts_with(&before));
    let kind = at.unwrap() + before.len();
    assert_eq!(frame[kind..kind + 2], block);
    for other in [ResourceType::Mem, ResourceType::Cpu] {
        frame[kind..kind + 2].copy_from_slice(&other.code().to_be_bytes());
        let Ok(Ok(Reply::Lease(lease))) = decode_answer(&header, &frame) else {
            panic!("an unknown tag would be taken, too")
        };
        assert_eq!(lease.resource_type(), other);
        assert!(lease.binding.is_plain(), "{lease:?}");
        let secret = (0..frame.len()).find(|at| frame[*at..].starts_with(b"DHHC-1:"));
        let mut damaged = frame.clone();
        damaged[secret.unwrap()] = b'X';
        decode_answer(&header, &damaged).unwrap_err();
    }
}

#[cfg(feature = "serde")]
#[test]
fn what_is_read_from_a_file_is_checked_as_well() {
    let read = |text: &str| serde_json::from_str::<DhchapSecret>(text);
    assert_eq!(read(&format!("\"{SECRET}\"")).unwrap().reveal(), SECRET);
    let error = read("\"DHHC-1:99:hidden:\"").unwrap_err().to_string();
    assert!(!error.contains("hidden"), "{error}");
    assert!(serde_json::from_str::<Nqn>("\"../../etc\"").is_err());
}
