//! The environment variables that select the device for the vendor's library in this process.

use std::env;

use fabricbios_wire::GpuVendor;

/// Sets the environment from which the vendor's library reads, while it loads, which device to show. Switches off the
/// caches of the vendors' compilers, so that no bytes of a tenant reach files.
///
/// The process must have one thread: a worker or a helper process that has loaded nothing yet.
pub(super) fn prepare(vendor: GpuVendor, visible: &str) {
    let (wanted, removed): (&[(&str, &str)], &[&str]) = match vendor {
        GpuVendor::Nvidia => (
            &[
                ("CUDA_VISIBLE_DEVICES", visible),
                ("CUDA_CACHE_DISABLE", "1"),
                // A module takes its memory when it is loaded, not later during a launch.
                ("CUDA_MODULE_LOADING", "EAGER"),
                // No MPS server of the machine may own the context instead of this process.
                ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent"),
            ],
            &["CUDA_INJECTION64_PATH", "CUDA_LAUNCH_BLOCKING"],
        ),
        GpuVendor::Amd => (
            &[("ROCR_VISIBLE_DEVICES", visible), ("AMD_COMGR_CACHE", "0")],
            // HIP applies these variables to the devices that the first variable leaves.
            &[
                "HIP_VISIBLE_DEVICES",
                "CUDA_VISIBLE_DEVICES",
                "GPU_DEVICE_ORDINAL",
            ],
        ),
    };
    for (name, value) in wanted {
        if env::var(name).as_deref() != Ok(value) {
            // SAFETY: the process has one thread, so nobody else reads the environment at the moment.
            unsafe { env::set_var(name, value) };
        }
    }
    for name in removed.iter().filter(|name| env::var_os(name).is_some()) {
        // SAFETY: as above.
        unsafe { env::remove_var(name) };
    }
}
