//! Reads amdgpu's files about a device in sysfs.

use fabricbios_kernfs::Tree;

use crate::{Health, driver::MemoryInfo, management::worst};

/// The directory of a device on the PCI bus.
fn directory(pci: &str) -> String {
    format!("bus/pci/devices/{pci}")
}

/// Memory of a device. `None`: the kernel does not report it.
pub(super) fn memory(sys: &Tree, pci: &str) -> Option<MemoryInfo> {
    let read = |name: &str| {
        sys.read_as::<u64>(format!("{}/{name}", directory(pci)))
            .ok()
    };
    let (total, used) = (read("mem_info_vram_total")?, read("mem_info_vram_used")?);
    Some(MemoryInfo {
        free: total.saturating_sub(used),
        total,
    })
}

/// The names of a device's nodes in /dev/dri with this prefix: `renderD`, or `card`, by which programs can compute too.
pub(super) fn nodes(sys: &Tree, pci: &str, begin: &str) -> Vec<String> {
    let mut names = sys
        .list(format!("{}/drm", directory(pci)))
        .unwrap_or_default();
    names.retain(|it| it.starts_with(begin));
    names
}

/// The health of a device, from the errors that amdgpu has counted for each of its blocks since it was loaded. Devices
/// without RAS (reliability, availability, serviceability) have no counters.
pub(super) fn health(sys: &Tree, pci: &str) -> Health {
    let ras = format!("{}/ras", directory(pci));
    let names = sys.list(&ras).unwrap_or_default();
    let blocks = names
        .iter()
        .filter_map(|name| name.strip_suffix("_err_count"));
    worst(blocks.map(|block| {
        let text = sys
            .read(format!("{ras}/{block}_err_count"))
            .unwrap_or_default();
        match uncorrectable(&text) {
            0 => Health::Good,
            count => Health::Degraded(format!(
                "{count} errors of {block} that could not be corrected since the driver was loaded"
            )),
        }
    }))
}

/// The number behind `ue:` in the text of a counter, such as `ue: 0\nce: 2`.
fn uncorrectable(text: &str) -> u64 {
    let value = |line: &str| line.trim().strip_prefix("ue:")?.trim().parse().ok();
    text.lines().find_map(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PCI: &str = "0000:03:00.0";

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Tree) {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = place.path().join(directory(PCI)).join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let tree = Tree::new(place.path());
        (place, tree)
    }

    #[test]
    fn memory_is_free_that_is_not_used() {
        let total = ("mem_info_vram_total", "68702699520\n");
        let (_place, sys) = tree(&[total, ("mem_info_vram_used", "11534336\n")]);
        let memory = memory(&sys, PCI).unwrap();
        assert_eq!((memory.free, memory.total), (68691165184, 68702699520));
        let (_place, sys) = tree(&[total]);
        assert_eq!(super::memory(&sys, PCI), None);
    }

    #[test]
    fn errors_that_cannot_be_corrected_degrade() {
        let good = ("ras/gfx_err_count", "ue: 0\nce: 7\n");
        let (_place, sys) = tree(&[good, ("ras/features", "feature mask: 0x1\n")]);
        assert_eq!(health(&sys, PCI), Health::Good);
        let (_place, sys) = tree(&[good, ("ras/umc_err_count", "ue: 2\nce: 0\nde: 0\n")]);
        let why = "2 errors of umc that could not be corrected since the driver was loaded";
        assert_eq!(health(&sys, PCI), Health::Degraded(why.into()));
        assert_eq!(health(&sys, "0000:04:00.0"), Health::Good);
    }

    #[test]
    fn the_render_node_is_of_the_device() {
        let (_place, sys) = tree(&[("drm/card1/dev", ""), ("drm/renderD129/dev", "")]);
        assert_eq!(nodes(&sys, PCI, "renderD"), ["renderD129"]);
        assert!(nodes(&sys, "0000:04:00.0", "renderD").is_empty());
    }
}
