//! Tests of the worker as a process, with stand-ins for the vendors' libraries.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on has failed; its numbers are small"
)]

mod ahead;
mod client;
mod descriptors;
mod end;
mod kernels;
mod refusals;
mod shared;
mod streams;
mod worker;

use std::env;

use fabricbios_wire::GpuVendor;
use nix::unistd::geteuid;

/// The vendors that the crate was built for.
fn vendors() -> Vec<GpuVendor> {
    assert!(
        geteuid().is_root(),
        "a worker has a user of its own: only root runs this test"
    );
    let nvidia = cfg!(feature = "gpu-cuda").then_some(GpuVendor::Nvidia);
    let amd = cfg!(feature = "gpu-hip").then_some(GpuVendor::Amd);
    nvidia.into_iter().chain(amd).collect()
}

/// The worker process of the other tests; does nothing as a test of its own.
#[test]
#[ignore = "a process of the other tests"]
fn worker_process() {
    if env::var_os(worker::MARK).is_some() {
        worker::be_one();
    }
}
