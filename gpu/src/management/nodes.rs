//! Nodes of devices in /dev.

use std::path::Path;

use nix::sys::stat::{SFlag, major, minor, stat};

use crate::Node;

/// The character device at this path. `is_shared`: programs that use other devices open it too.
///
/// # Errors
/// For people: it is not there, or something else is.
pub(super) fn node(path: &Path, is_shared: bool) -> Result<Node, String> {
    let shown = path.display();
    let found = stat(path).map_err(|errno| format!("{shown}: {}", errno.desc()))?;
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFCHR {
        return Err(format!("{shown} is no character device"));
    }
    let number = |number: u64| u32::try_from(number).map_err(|error| format!("{shown}: {error}"));
    Ok(Node {
        path: path.to_owned(),
        major: number(major(found.st_rdev))?,
        minor: number(minor(found.st_rdev))?,
        is_shared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_device_is_a_node() {
        let null = node(Path::new("/dev/null"), false).unwrap();
        assert_eq!((null.major, null.minor), (1, 3));
        let error = node(Path::new("/dev/no-such-node"), false).unwrap_err();
        assert_eq!(error, "/dev/no-such-node: No such file or directory");
        let error = node(Path::new("/dev"), false).unwrap_err();
        assert_eq!(error, "/dev is no character device");
    }
}
