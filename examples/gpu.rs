//! Leases memory of a GPU and adds two arrays there, from any machine. The kernel comes from a PTX file, such as
//! `testbed/stand-ins/ptx/vector_add.ptx` of this repository.
//!
//! ```console
//! $ export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
//! $ cargo run -p fabricbios-client --example gpu -- vector_add.ptx
//! ```
//!
//! It was run on stand-ins of NVIDIA's libraries, not yet on a GPU.

use std::time::Duration;

use fabricbios_client::{GpuBuilder, Identity, Node, Submission, wire::GpuVendor};

const COUNT: u32 = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("name a PTX file")?;
    let ptx = std::fs::read(&file).map_err(|error| format!("{file}: {error}"))?;
    let (address, node_id) = (Node::default_address(), Node::default_id()?);
    let node = Node::connect_to(&address, &Identity::from_env()?, node_id, Duration::ZERO)?;
    // PTX is for NVIDIA. A program that takes any GPU leaves out `resource()`.
    let resources = node.inventory()?.resources;
    let nvidia = resources
        .iter()
        .find(|it| it.vendor() == Some(GpuVendor::Nvidia));
    let lease = GpuBuilder::new()
        .on(&node)
        .resource(nvidia.ok_or("the node leases no GPU of NVIDIA")?.id)
        .min_vram(1 << 20)
        .lease_secs(60)
        .acquire()?;

    let a = bytes(|i| i as f32);
    let b = bytes(|i| 2.0 * i as f32);
    let sum = Submission::new(&ptx, "vector_add")
        .grid([COUNT / 256, 1, 1])
        .block([256, 1, 1])
        .input(&a)
        .input(&b)
        .output(a.len() as u64)
        .value(COUNT);
    // A session on the node copies the inputs to the device, runs the kernel, copies the output back, and wipes
    // its memory.
    let done = lease.submit(&sum)?;

    let is_right = done.outputs[0] == bytes(|i| 3.0 * i as f32);
    println!("{COUNT} sums are right: {is_right}");
    lease.free()?;
    Ok(())
}

/// The floats of an array, as the device has them.
fn bytes(value: impl Fn(u32) -> f32) -> Vec<u8> {
    (0..COUNT).flat_map(|i| value(i).to_le_bytes()).collect()
}
