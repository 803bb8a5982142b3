use super::*;
use proptest::prelude::*;

fn target() -> Target {
    let device = DeviceNumber { major: 7, minor: 3 };
    Target::linear(device, 1 << 20, 3 << 20)
}

#[test]
fn a_request_is_laid_out_as_the_kernel_wants_it() {
    let request = Request {
        name: "fabricbios-1",
        uuid: "FABRICBIOS-2",
        flags: READ_ONLY,
        event: HANDS_OFF,
        targets: 1,
        data: target().encode(),
    };
    let bytes = request.encode(0);
    assert_eq!(bytes.len(), 312 + 56);
    assert_eq!(bytes[..4], 4u32.to_ne_bytes());
    assert_eq!(bytes[12..16], 368u32.to_ne_bytes());
    assert_eq!(bytes[16..20], 312u32.to_ne_bytes());
    assert_eq!(bytes[20..24], 1u32.to_ne_bytes());
    assert_eq!(bytes[28..32], 1u32.to_ne_bytes());
    assert_eq!(bytes[32..36], 0x4E_0000u32.to_ne_bytes());
    assert_eq!(&bytes[48..61], b"fabricbios-1\0");
    assert_eq!(&bytes[176..189], b"FABRICBIOS-2\0");
    let spec = &bytes[312..];
    assert_eq!(spec[..8], 0u64.to_ne_bytes());
    assert_eq!(spec[8..16], 6144u64.to_ne_bytes());
    assert_eq!(spec[20..24], 56u32.to_ne_bytes());
    assert_eq!(&spec[24..31], b"linear\0");
    assert_eq!(&spec[40..49], b"7:3 2048\0");
}

#[test]
fn a_name_that_is_too_long_stays_in_its_field() {
    let long = "x".repeat(500);
    let request = Request {
        name: &long,
        uuid: &long,
        ..Request::default()
    };
    let bytes = request.encode(100);
    assert_eq!(bytes.len(), 412);
    assert_eq!((bytes[175], bytes[304]), (0, 0));
    assert!(bytes[305..].iter().all(|&byte| byte == 0));
}

/// The answer of `list_devices` of drivers/md/dm-ioctl.c.
fn list(entries: &[(u64, &str)]) -> Vec<u8> {
    let mut bytes = Request::default().encode(0);
    for (index, (device, name)) in entries.iter().enumerate() {
        let length = (12 + name.len() + 1).next_multiple_of(8) + 8;
        let next = if index + 1 < entries.len() { length } else { 0 };
        let mut entry = vec![0; length];
        entry[..8].copy_from_slice(&device.to_ne_bytes());
        entry[8..12].copy_from_slice(&u32::try_from(next).unwrap().to_ne_bytes());
        entry[12..12 + name.len()].copy_from_slice(name.as_bytes());
        bytes.extend(entry);
    }
    bytes
}

#[test]
fn names_are_read_and_the_list_of_none_is_empty() {
    let bytes = list(&[(0xFD00, "a"), (0xFD01, "fabricbios-00")]);
    assert_eq!(Answer(&bytes).names(), ["a", "fabricbios-00"]);
    assert_eq!(Answer(&list(&[(0, "")])).names(), [""; 0]);
    assert_eq!(Answer(&list(&[])).names(), [""; 0]);
}

#[test]
fn a_table_is_read_back() {
    let request = Request {
        targets: 1,
        data: target().encode(),
        ..Request::default()
    };
    assert_eq!(Answer(&request.encode(0)).targets(), Some(vec![target()]));
}

#[test]
fn a_table_that_ends_early_is_no_table() {
    let request = Request {
        targets: 2,
        data: target().encode(),
        ..Request::default()
    };
    assert_eq!(Answer(&request.encode(0)).targets(), None);
}

#[test]
fn device_numbers_are_the_kernels() {
    let number = |kernel| DeviceNumber::from_kernel(kernel).to_string();
    assert_eq!(number(0xFD05), "253:5");
    // new_encode_dev: the minor's upper bits come after the major.
    assert_eq!(number(0x0010_FD00), "253:256");
}

proptest! {
    #[test]
    fn any_answer_is_survived(bytes: Vec<u8>, data in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut whole = Request::default().encode(0);
        whole.extend(&data);
        whole[20..24].copy_from_slice(&3u32.to_ne_bytes());
        for answer in [Answer(&bytes), Answer(&whole)] {
            let _any = (answer.names(), answer.targets(), answer.uuid(), answer.device(), answer.flags());
        }
    }
}
