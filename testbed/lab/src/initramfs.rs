//! The first file system of a guest: a cpio archive in the kernel's `newc` form.
//!
//! Our own code and not cpio(1) writes it, because each boot has its own command in the archive, and because
//! the format is simple (kernel documentation, `driver-api/early-userspace/buffer-format`). Pure.

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;
const MODE_LINK: u32 = 0o120_777;
const TRAILER: &str = "TRAILER!!!";

/// An archive under construction. Every directory must be added before its contents.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    pub(crate) fn directory(&mut self, path: &str) {
        self.entry(path, MODE_DIRECTORY, &[]);
    }

    /// A file. All files are executable, which does no harm in the guest's first file system.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, MODE_PROGRAM, content);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, MODE_LINK, target.as_bytes());
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let name_bytes = path.len() + 1;
        let header = format!(
            "070701{:08X}{mode:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{name_bytes:08X}{:08X}",
            self.inode,
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            0,
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Every boot of a guest shows that the kernel can read the archive.
    #[test]
    fn entries_are_aligned_to_four_bytes() {
        let mut archive = Archive::default();
        for length in 0..5 {
            archive.file("f", &vec![1; length]);
        }
        let bytes = archive.finish();
        let magics = bytes
            .windows(6)
            .enumerate()
            .filter(|(_, window)| window == b"070701");
        let places: Vec<usize> = magics.map(|(place, _)| place).collect();
        assert_eq!(places.len(), 6);
        assert!(places.iter().all(|place| place % 4 == 0));
    }
}
