//! Replaces the module of a vendor that this program was built without.

use fabricbios_helper::Failure;
use fabricbios_wire::GpuVendor;

use super::{Accounted, Probed, Roots, watch::Watcher};
use crate::{Device, Libraries};

/// Finds no device.
pub(super) fn probe(_libraries: &Libraries, _roots: &Roots, _probed: &mut Probed) {}

/// Always fails.
pub(super) fn account(
    _libraries: &Libraries,
    _roots: &Roots,
    device: &Device,
) -> Result<Accounted, Failure> {
    Err(refused(device.vendor))
}

/// Always fails.
pub(super) fn watcher(
    _libraries: &Libraries,
    _roots: Roots,
    devices: &[Device],
) -> Result<Box<dyn Watcher>, Failure> {
    Err(refused(
        devices.first().map_or(GpuVendor::Nvidia, |it| it.vendor),
    ))
}

fn refused(vendor: GpuVendor) -> Failure {
    let feature = match vendor {
        GpuVendor::Nvidia => "gpu-cuda",
        GpuVendor::Amd => "gpu-hip",
    };
    Failure::from(format!(
        "this program was built without the feature {feature}"
    ))
}
