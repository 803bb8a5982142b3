//! The signatures of tools on a disk, so that a disk in use is not mistaken for an empty one.
//!
//! Offsets and bytes: the UEFI specification 2.10 (5.2.1 and 5.3.2), and the kernel's headers
//! (fs/ext4/ext4.h, fs/xfs/libxfs/xfs_format.h, fs/btrfs/fs.h, include/linux/swap.h,
//! include/uapi/linux/raid/md_p.h, include/linux/f2fs_fs.h), LVM2's lib/format_text/layout.h and the LUKS2
//! on-disk format 1.1.

use std::io;

/// A signature: name, offset and bytes.
const AT_THE_START: [(&str, u64, &[u8]); 20] = [
    ("a partition table or boot sector", 510, &[0x55, 0xAA]),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xEF]),
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, &[0x10, 0x20, 0xF5, 0xF2]),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a bcachefs or bcache device", 0x1018, &BCACHE),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 65526, b"SWAPSPACE2"),
    ("hibernated memory", 4086, b"S1SUSPEND"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("a LUKS volume", 0x4000, b"SKUL\xBA\xBE"),
    ("a member of a RAID (md 1.1)", 0, &MD),
    ("a member of a RAID (md 1.2)", 4096, &MD),
];
const MD: [u8; 4] = 0xA92B_4EFC_u32.to_le_bytes();
const BCACHE: [u8; 16] = [
    0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA, 0x82, 0x65, 0xF5, 0x7F, 0x48, 0xBA, 0x6D, 0x81,
];

/// The names of the signatures on a device of `bytes`, each once.
pub(crate) fn found(
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<&'static str>> {
    let mut names = Vec::new();
    for (name, offset, expected) in AT_THE_START.into_iter().chain(at_the_end(bytes)) {
        let within = offset.saturating_add(expected.len() as u64) <= bytes;
        let mut there = vec![0; expected.len()];
        if within && !names.contains(&name) {
            read(offset, &mut there)?;
            if there == expected {
                names.push(name);
            }
        }
    }
    Ok(names)
}

fn at_the_end(bytes: u64) -> [(&'static str, u64, &'static [u8]); 4] {
    const PAGE: u64 = 4096;
    const RESERVED: u64 = 64 << 10;
    let md_0_90 = (bytes & !(RESERVED - 1)).saturating_sub(RESERVED);
    let md_1_0 = bytes.saturating_sub(2 * PAGE) & !(PAGE - 1);
    [
        ("a member of a RAID (md 0.90)", md_0_90, &MD),
        ("a member of a RAID (md 1.0)", md_1_0, &MD),
        (
            "a GPT partition table",
            bytes.saturating_sub(512),
            b"EFI PART",
        ),
        (
            "a GPT partition table",
            bytes.saturating_sub(4096),
            b"EFI PART",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 20;

    fn names(device: &[u8]) -> Vec<&'static str> {
        let read = |offset: u64, bytes: &mut [u8]| {
            let offset = usize::try_from(offset).unwrap();
            bytes.copy_from_slice(&device[offset..offset + bytes.len()]);
            Ok(())
        };
        found(device.len() as u64, read).unwrap()
    }

    #[test]
    fn an_empty_device_has_nothing_on_it() {
        assert_eq!(names(&[0; BYTES]), [""; 0]);
        assert_eq!(names(&[]), [""; 0]);
        assert_eq!(names(&[0; 511]), [""; 0]);
    }

    #[test]
    fn each_signature_is_found_where_it_stands() {
        for (name, offset, bytes) in AT_THE_START.into_iter().chain(at_the_end(BYTES as u64)) {
            let mut device = [0; BYTES];
            let offset = usize::try_from(offset).unwrap();
            device[offset..offset + bytes.len()].copy_from_slice(bytes);
            assert_eq!(names(&device), [name], "{offset}");
        }
    }

    #[test]
    fn several_are_named_once_each() {
        let mut device = [0; BYTES];
        device[510..512].copy_from_slice(&[0x55, 0xAA]);
        device[512..520].copy_from_slice(b"EFI PART");
        device[BYTES - 512..BYTES - 504].copy_from_slice(b"EFI PART");
        let both = ["a partition table or boot sector", "a GPT partition table"];
        assert_eq!(names(&device), both);
    }
}
