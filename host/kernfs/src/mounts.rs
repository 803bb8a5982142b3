//! The mounts of this process: `/proc/PID/mountinfo` of proc(5).

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

/// A mount that this process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device number of the files, as `major:minor`. Some file systems (btrfs) use other numbers than that of their
    /// device.
    pub number: OsString,
    /// The mount point.
    pub place: PathBuf,
    /// Type of the file system, such as `ext4`.
    pub kind: OsString,
    /// The device; for a file system without a device, any word.
    pub source: PathBuf,
}

/// The mounts that this process sees; none if /proc cannot be read.
#[must_use]
pub fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The mounts in the text of a mountinfo file. Other lines are skipped.
#[must_use]
pub fn parse_mounts(mountinfo: &[u8]) -> Vec<Mount> {
    let lines = mountinfo.split(|&byte| byte == b'\n');
    lines.filter_map(mount).collect()
}

/// One line, such as `36 22 259:3 / /mnt/a rw shared:7 - ext4 /dev/sda rw`; the number of words before the dash varies.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&byte| byte == b' ').map(unescaped);
    let number = words.nth(2)?;
    let place = words.nth(1)?.into();
    words.find(|word| word.as_bytes() == b"-")?;
    Some(Mount {
        number,
        place,
        kind: words.next()?,
        source: words.next()?.into(),
    })
}

/// The kernel writes blanks, tabs, line ends, backslashes and `#` as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [byte, others @ ..] = rest {
        let (byte, others) = match others {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                others @ ..,
            ] if *byte == b'\\' => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), others),
            _ => (*byte, others),
        };
        plain.push(byte);
        rest = others;
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_a_number_a_place_a_type_and_a_source() {
        let text = b"36 22 259:3 / /mnt/a\\040b\\134\xFF rw - ext4 /dev/nvme1n1 rw\n\
                     37 22 0:40 /sub /mnt/c rw shared:7 master:2 - btrfs /dev/sdb rw,ssd\n\
                     38 22 0:41 / /mnt/d\\8 rw - tmpfs  rw\n\
                     nonsense\n39 22 0:5 / /e rw -\n";
        let [first, second, third] = parse_mounts(text).try_into().unwrap();
        assert_eq!(first.place.as_os_str().as_bytes(), b"/mnt/a b\\\xFF");
        let expected = Mount {
            number: "0:40".into(),
            place: "/mnt/c".into(),
            kind: "btrfs".into(),
            source: "/dev/sdb".into(),
        };
        assert_eq!(second, expected);
        assert_eq!((third.place, third.source), ("/mnt/d\\8".into(), "".into()));
    }

    #[test]
    fn this_process_sees_mounts() {
        let is_proc = |mount: &Mount| mount.kind == "proc";
        assert!(mounts().iter().any(is_proc));
    }
}
