//! Which kernel modules the first file system of a guest needs, in the order to load them. Pure.

use std::collections::HashMap;

/// Modules that must be loaded before the guest can use the host's root file system over 9p. Modules that this
/// kernel has built in are not in `modules.dep` and are skipped.
const WANTED: [&str; 4] = ["virtio_pci", "9p", "9pnet_virtio", "overlay"];

/// Paths (relative to the kernel's module directory) of the wanted modules and their dependencies,
/// each after its own dependencies. `dependencies` is the text of `modules.dep`.
pub(crate) fn load_order(dependencies: &str) -> Vec<String> {
    let table = parse(dependencies);
    let mut order: Vec<String> = Vec::new();
    for wanted in WANTED {
        let Some((path, needs)) = table.get(wanted) else {
            continue;
        };
        // modules.dep lists the nearest dependency first, so loading reads it backwards.
        for module in needs.iter().rev().chain([path]) {
            if !order.iter().any(|known| known == module) {
                order.push((*module).to_owned());
            }
        }
    }
    order
}

type Table<'a> = HashMap<&'a str, (&'a str, Vec<&'a str>)>;

fn parse(dependencies: &str) -> Table<'_> {
    let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(path, needs)| (name(path), (path, needs.split_whitespace().collect())))
        .collect()
}

fn name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_module_comes_after_what_it_needs_and_once() {
        let dependencies = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n\
                            kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n\
                            kernel/fs/overlayfs/overlay.ko:\n\
                            kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko\n";
        assert_eq!(
            load_order(dependencies),
            [
                "kernel/fs/netfs/netfs.ko",
                "kernel/net/9p/9pnet.ko",
                "kernel/fs/9p/9p.ko",
                "kernel/net/9p/9pnet_virtio.ko",
                "kernel/fs/overlayfs/overlay.ko"
            ]
        );
    }
}
