//! The nodes of a device that programs need.

use std::path::PathBuf;

use fabricbios_cgroup::nodes::{Node, NodeError};

/// Why programs on this machine cannot use a device.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoNodes {
    /// The driver: it makes no node for programs.
    #[error("it has no render node")]
    NoRenderNode,
    /// Who makes the nodes: these are missing.
    #[error("{}", texts(.0))]
    Missing(Vec<NodeError>),
}

fn texts(errors: &[NodeError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The nodes at these paths, all or none: a program needs every one of them to use the device. Beside each path:
/// whether programs that use other devices open the node too.
///
/// # Errors
/// Nodes are missing.
pub(super) fn nodes(paths: &[(PathBuf, bool)]) -> Result<Vec<Node>, NoNodes> {
    let found = paths
        .iter()
        .map(|(path, is_shared)| Node::at(path, *is_shared));
    let (found, missing): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
    if missing.is_empty() {
        return Ok(found.into_iter().flatten().collect());
    }
    Err(NoNodes::Missing(
        missing.into_iter().filter_map(Result::err).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_device_has_all_of_its_nodes_or_none() {
        let at = |name: &str| (Path::new("/dev").join(name), false);
        let both = nodes(&[at("null"), at("zero")]).unwrap();
        assert_eq!(both.len(), 2);
        let missing = nodes(&[at("null"), at("no-such-node"), at(".")]).unwrap_err();
        let missing = missing.to_string();
        assert!(
            missing.starts_with("/dev/no-such-node: No such file"),
            "{missing}"
        );
        assert!(
            missing.ends_with("; /dev/. is no character device"),
            "{missing}"
        );
    }
}
