//! Nodes of devices in /dev.

use std::path::{Path, PathBuf};

use nix::sys::stat::{SFlag, major, minor, stat};

use crate::Node;

/// The nodes at these paths, all or none: a program needs every one of them to use the device.
///
/// # Errors
/// A node is missing; for people.
pub(super) fn nodes(paths: &[(PathBuf, bool)]) -> Result<Vec<Node>, String> {
    let found = paths.iter().map(|(path, is_shared)| node(path, *is_shared));
    let (found, missing): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
    if missing.is_empty() {
        return Ok(found.into_iter().flatten().collect());
    }
    let missing: Vec<String> = missing.into_iter().filter_map(Result::err).collect();
    Err(missing.join("; "))
}

/// The character device at this path. `is_shared`: programs that use other devices open it too.
///
/// # Errors
/// No node is there, or something else is; for people.
fn node(path: &Path, is_shared: bool) -> Result<Node, String> {
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
    fn a_device_has_all_of_its_nodes_or_none() {
        let at = |name: &str| (Path::new("/dev").join(name), false);
        let both = nodes(&[at("null"), at("zero")]).unwrap();
        assert_eq!(both.len(), 2);
        let error = nodes(&[at("null"), at("no-such-node")]).unwrap_err();
        assert_eq!(error, "/dev/no-such-node: No such file or directory");
    }

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
