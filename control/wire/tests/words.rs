//! The words that people type and that JSON contains.

use std::net::SocketAddr;

use fabricbios_wire::*;

#[test]
fn classes_are_taken_in_both_spellings() {
    for (text, class) in [
        ("best_effort", CpuIsolationClass::BestEffort),
        ("BestEffort", CpuIsolationClass::BestEffort),
        ("whole_core", CpuIsolationClass::WholeCore),
        ("WholeCore", CpuIsolationClass::WholeCore),
        ("strict", CpuIsolationClass::StrictIsolated),
        ("strict_isolated", CpuIsolationClass::StrictIsolated),
        ("StrictIsolated", CpuIsolationClass::StrictIsolated),
    ] {
        assert_eq!(text.parse(), Ok(class));
    }
    for (text, class) in [
        ("shared", GpuExclusivityClass::Shared),
        ("Shared", GpuExclusivityClass::Shared),
        ("session", GpuExclusivityClass::SessionExclusive),
        ("SessionExclusive", GpuExclusivityClass::SessionExclusive),
        ("device", GpuExclusivityClass::DeviceExclusive),
        ("DeviceExclusive", GpuExclusivityClass::DeviceExclusive),
        ("partition", GpuExclusivityClass::PartitionExclusive),
        (
            "PartitionExclusive",
            GpuExclusivityClass::PartitionExclusive,
        ),
    ] {
        assert_eq!(text.parse(), Ok(class));
    }
    let error = "wholecore".parse::<CpuIsolationClass>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"wholecore\" is not a CPU isolation class: \
         expected one of best_effort whole_core strict_isolated"
    );
}

#[test]
fn every_word_reads_back_and_every_number_too() {
    fn check<T: Copy + PartialEq + std::fmt::Debug + std::fmt::Display + std::str::FromStr>(
        all: &[T],
        number: impl Fn(T) -> Option<T>,
    ) {
        assert!(!all.is_empty());
        for value in all {
            assert_eq!(value.to_string().parse::<T>().ok(), Some(*value));
            assert_eq!(number(*value), Some(*value));
        }
    }
    check(CpuIsolationClass::ALL, |v| {
        CpuIsolationClass::from_byte(v as u8)
    });
    check(CpuExecutionMode::ALL, |v| {
        CpuExecutionMode::from_byte(v as u8)
    });
    check(CpuPartition::ALL, |v| CpuPartition::from_byte(v as u8));
    check(Enforcement::ALL, |v| Enforcement::from_byte(v as u8));
    check(HandOver::ALL, |v| HandOver::from_byte(v as u8));
    check(GpuExclusivityClass::ALL, |v| {
        GpuExclusivityClass::from_byte(v as u8)
    });
    check(GpuExecutionMode::ALL, |v| {
        GpuExecutionMode::from_byte(v as u8)
    });
    check(GpuVendor::ALL, |v| GpuVendor::from_byte(v as u8));
    check(Transport::ALL, |v| Transport::from_byte(v as u8));
    check(LeaseStatus::ALL, |v| LeaseStatus::from_byte(v as u8));
    check(LeasePhase::ALL, |v| LeasePhase::from_byte(v as u8));
    check(EndCause::ALL, |v| EndCause::from_byte(v as u8));
    check(RefusalClass::ALL, |v| RefusalClass::from_byte(v as u8));
    check(LeaseError::ALL, |v| LeaseError::from_code(v as u16));
    check(MessageType::ALL, |v| MessageType::from_code(v as u16));
    check(Role::ALL, |v| Role::from_byte(v as u8));
    check(RdmaStrategy::ALL, |v| RdmaStrategy::from_byte(v as u8));
    check(RevokeOutcome::ALL, |v| RevokeOutcome::from_byte(v as u8));
}

#[test]
fn refusals_keep_the_names_of_the_specification() {
    let names: Vec<_> = LeaseError::ALL.iter().map(|error| error.name()).collect();
    let first = [
        "InvalidIntent",
        "InvalidArgs",
        "CapacityExceeded",
        "ResourceBusy",
    ];
    assert_eq!(names[..4], first);
    let refusal = Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, "held");
    assert_eq!(refusal.to_string(), "ResourceBusy (transient): held");
}

#[test]
fn every_type_code_reads_back() {
    for code in 0..=u16::MAX {
        assert_eq!(ResourceType::from_code(code).code(), code);
    }
    assert_eq!(ResourceType::Vendor.to_string(), "vendor");
    assert_eq!(
        ResourceType::from_code(0x1234).to_string(),
        "unknown(0x1234)"
    );
}

#[test]
fn an_ipv4_endpoint_travels_as_v4_mapped_and_comes_back_as_ipv4() {
    let address: SocketAddr = "192.0.2.7:5702".parse().unwrap();
    let endpoint = Endpoint::from(address);
    assert_eq!(
        endpoint.addr[..12],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]
    );
    assert_eq!(SocketAddr::from(endpoint), address);
    assert_eq!(endpoint.to_string(), "192.0.2.7:5702");
    for wildcard in ["0.0.0.0:1", "[::]:1", "[::ffff:0.0.0.0]:1", "192.0.2.7:0"] {
        let wildcard: SocketAddr = wildcard.parse().unwrap();
        assert!(Endpoint::from(wildcard).is_wildcard(), "{wildcard}");
    }
}

#[test]
fn a_data_plane_key_never_prints() {
    let binding = Binding {
        dp_key: Some(DpKey([0xAB; 32])),
        ..Binding::plain(ResourceType::Mem)
    };
    let printed = format!("{binding:?}");
    assert!(printed.contains("DpKey(..)"), "{printed}");
    assert!(
        !printed.contains("171") && !printed.to_lowercase().contains("abab"),
        "{printed}"
    );
}

#[test]
fn sizes_in_every_spelling() {
    for (text, bytes) in [
        ("0", 0),
        ("1", 1),
        ("4096B", 4_096),
        ("4KiB", 4_096),
        ("4k", 4_096),
        ("1M", 1 << 20),
        ("10m", 10 << 20),
        ("3 MiB", 3 << 20),
        ("2GiB", 2 << 30),
        ("1T", 1 << 40),
        ("16777215TiB", 16_777_215 << 40),
        // Units of disk vendors.
        ("1MB", 1_000_000),
        ("1kB", 1_000),
        ("2GB", 2_000_000_000),
        ("1tb", 1_000_000_000_000),
    ] {
        assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
    }
    let none = [
        "", "1.5GiB", "-1", "+1", "GiB", "1e3", "0x10", "1XiB", "1 0", "1K i", "1KiBs", "٣M",
    ];
    for text in none {
        assert_eq!(
            text.parse::<Size>(),
            Err(ParseSizeError::NotASize),
            "{text}"
        );
    }
    for text in ["16777216TiB", "99999999999999999999", "18446744073710TB"] {
        assert_eq!(
            text.parse::<Size>(),
            Err(ParseSizeError::TooLarge),
            "{text}"
        );
    }
}

#[test]
fn sizes_are_shown_short_and_never_too_large() {
    for (bytes, text) in [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1 << 10, "1 KiB"),
        (1 << 30, "1 GiB"),
        (24_684_096 << 10, "23.5 GiB"),
        ((1 << 30) - 1, "1023.9 MiB"),
        ((1 << 20) + 1, "1.0 MiB"),
        (u64::MAX, "16777215.9 TiB"),
    ] {
        assert_eq!(Size(bytes).to_string(), text, "{bytes}");
    }
}

#[test]
fn a_pci_function_is_written_as_sysfs_writes_it() {
    let function = PciFunction::parse("0000:01:10.1").unwrap();
    assert_eq!(
        (function.bus, function.device, function.function),
        (1, 0x10, 1)
    );
    assert_eq!(function.to_string(), "0000:01:10.1");
    for text in [
        "",
        "01:10.1",
        "0000:01:10",
        "0000:01:20.0",
        "0000:01:10.8",
        "0:1:10.1",
        "+000:+1:10.1",
        "0000:0A:10.1",
        "0000:01:10.1/..",
        "10000:01:10.1",
    ] {
        assert_eq!(PciFunction::parse(text), None, "{text}");
    }
}

#[test]
fn a_mac_address_is_written_with_colons() {
    let mac: MacAddress = "02:00:0A:ff:00:01".parse().unwrap();
    assert_eq!(mac.to_string(), "02:00:0a:ff:00:01");
    for text in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "2:0:0:0:0:1",
        "02-00-00-00-00-01",
        "02:00:00:00:00:0g",
        "+2:00:00:00:00:01",
        "00:00:00:00:00:00",
        "01:00:5e:00:00:01",
        "ff:ff:ff:ff:ff:ff",
    ] {
        assert_eq!(text.parse::<MacAddress>(), Err(ParseMacError), "{text}");
    }
}

#[test]
fn numbers_become_ranges_as_the_kernel_lists_them() {
    let list = |numbers: &[u16]| -> Vec<String> {
        CpuRange::of(numbers.iter().copied())
            .iter()
            .map(CpuRange::to_string)
            .collect()
    };
    assert_eq!(list(&[]), [""; 0]);
    assert_eq!(list(&[5, 1, 0, 3, 1, 6]), ["0-1", "3", "5-6"]);
    assert_eq!(list(&[u16::MAX, 65_534]), ["65534-65535"]);
}

#[test]
fn amounts_are_told_in_the_unit_of_their_kind() {
    use ResourceType::{Cpu, Mem, Net, Vendor};
    let cases = [
        (Cpu, 1, "1 core"),
        (Cpu, 0, "0 cores"),
        (Mem, 1 << 30, "1 GiB"),
        (Net, 25_000_000_000, "25 Gbit/s"),
        (Net, 2_590_000_000, "2.5 Gbit/s"),
        (Net, 100_000_000, "100 Mbit/s"),
        (Net, 1_500, "1.5 kbit/s"),
        (Net, 999, "999 bit/s"),
        (Net, u64::MAX, "18446744073.7 Gbit/s"),
        (Vendor, 7, "7"),
    ];
    for (kind, amount, text) in cases {
        assert_eq!(kind.amount(amount), text);
    }
}
