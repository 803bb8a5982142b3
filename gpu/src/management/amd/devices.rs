//! Discovery by HIP.

use std::env;

use fabricbios_wire::GpuVendor;

use super::{
    hip::{Hip, HipError, Ordinal},
    kfd, sysfs,
};
use crate::{
    Device, Libraries, Node, WHOLE_SLICES,
    management::{
        Probed, Roots, is_absent,
        nodes::{NoNodes, nodes},
    },
};

/// Variables that hide devices, or give them other numbers.
const HIDING: [&str; 4] = [
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];

/// Finds all devices.
pub(in crate::management) fn probe(libraries: &Libraries, roots: &Roots, probed: &mut Probed) {
    for name in HIDING.iter().filter(|name| env::var_os(name).is_some()) {
        // SAFETY: a helper process has one thread before a vendor's library is loaded, so nobody else reads the environment.
        unsafe { env::remove_var(name) };
    }
    let Some(hip) = load(libraries, probed) else {
        return;
    };
    match hip.devices() {
        Ok(Some(ordinals)) => {
            for (index, ordinal) in ordinals.into_iter().enumerate() {
                let found = device(&hip, index, ordinal, roots, &mut probed.warnings);
                // HIP lists the parts of a divided device as devices, and all parts have one UUID.
                if probed.devices.iter().any(|it| it.uuid == found.uuid) {
                    let warning =
                        format!("{}: a second device of this UUID is left out", found.uuid);
                    probed.warnings.push(warning);
                } else {
                    probed.devices.push(found);
                }
            }
        }
        Ok(None) => probed.notes.push("HIP finds no device".into()),
        Err(error) => {
            let warning = format!("HIP cannot count its devices: {error}");
            probed.warnings.push(warning);
        }
    }
}

/// Loads HIP, if it is installed.
fn load(libraries: &Libraries, probed: &mut Probed) -> Option<Hip> {
    for library in &libraries.hip {
        match Hip::load(library) {
            Ok(hip) => return Some(hip),
            Err(error) if is_absent(library, &error.to_string()) => {}
            Err(error) => {
                let at = library.display();
                let warning = format!("AMD's devices cannot be looked for: {at}: {error}");
                probed.warnings.push(warning);
                return None;
            }
        }
    }
    let note = format!("HIP is not installed: there is none of {:?}", libraries.hip);
    probed.notes.push(note);
    None
}

fn device(
    hip: &Hip,
    index: usize,
    ordinal: Ordinal,
    roots: &Roots,
    warnings: &mut Vec<String>,
) -> Device {
    let mut told = Vec::new();
    let pci = keep(&mut told, hip.pci(ordinal));
    let uuid = keep(&mut told, hip.uuid(ordinal)).flatten();
    // Without a UUID, HIP's number is the only name of the device.
    let visible = uuid.clone().unwrap_or_else(|| index.to_string());
    let uuid = uuid.unwrap_or_else(|| match &pci {
        Some(pci) => format!("GPU-{pci}"),
        None => format!("GPU-{index}"),
    });
    let name = keep(&mut told, hip.name(ordinal)).filter(|name| !name.is_empty());
    let vram_bytes = keep(&mut told, hip.memory(ordinal)).unwrap_or(0);
    let place = pci.as_deref().unwrap_or_default();
    let nodes = kfd::nodes(&roots.sys, place);
    let counted = nodes
        .iter()
        .map(|it| it.stream_processors)
        .fold(0, u32::saturating_add);
    let compute_units = match counted {
        0 => keep(&mut told, hip.compute_units(ordinal))
            .unwrap_or(0)
            .saturating_mul(kfd::STREAM_PROCESSORS),
        counted => counted,
    };
    let nodes = device_nodes(roots, place).unwrap_or_else(|why| {
        told.push(format!("programs on this machine cannot use it: {why}"));
        Vec::new()
    });
    warnings.extend(told.into_iter().map(|why| format!("{uuid}: {why}")));
    Device {
        vendor: GpuVendor::Amd,
        name: name.unwrap_or_else(|| "AMD GPU".into()),
        health: sysfs::health(&roots.sys, place),
        uuid,
        pci,
        vram_bytes,
        compute_units,
        compute_slices: WHOLE_SLICES,
        partition_of: None,
        has_partitions: false,
        nodes,
        visible,
    }
}

fn keep<T>(told: &mut Vec<String>, value: Result<T, HipError>) -> Option<T> {
    value.map_err(|error| told.push(error.to_string())).ok()
}

fn device_nodes(roots: &Roots, pci: &str) -> Result<Vec<Node>, NoNodes> {
    let mut own = sysfs::nodes(&roots.sys, pci, "renderD");
    if own.is_empty() {
        return Err(NoNodes::NoRenderNode);
    }
    // Programs do not need these nodes, and many machines have none.
    let mut cards = sysfs::nodes(&roots.sys, pci, "card");
    cards.retain(|name| roots.dev.join("dri").join(name).exists());
    own.extend(cards);
    let names = own.iter().map(|name| (format!("dri/{name}"), false));
    let paths = names.chain([("kfd".to_owned(), true)]);
    let paths: Vec<_> = paths
        .map(|(name, is_shared)| (roots.dev.join(name), is_shared))
        .collect();
    nodes(&paths)
}
