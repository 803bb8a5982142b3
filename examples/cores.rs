//! Leases a CPU core of this machine and runs a program on it, where nobody else runs. The node's daemon is on the same
//! machine, with `--cpus`, `--local-socket` and `--tenant-uid` of this user.
//!
//! ```console
//! $ export FABRICBIOS_IDENTITY=FILE FABRICBIOS_LOCAL_SOCKET=PATH
//! $ cargo run -p fabricbios-client --example cores -- fabricctl
//! ```

use fabricbios_client::{CpuBuilder, IsolationPolicy};
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The argument is the path of `fabricctl`, if it is not in PATH.
    let fabricctl = std::env::args().nth(1).unwrap_or("fabricctl".to_owned());
    let lease = CpuBuilder::new()
        .single_core()
        .isolation(IsolationPolicy::WholeCore)
        .lease_secs(60)
        .acquire()?;
    if let Some(cores) = lease.binding().cpu() {
        println!("CPUs {:?}, control group {}", cores.cpus, cores.cgroup);
    }

    // `fabricctl run` moves itself into the lease's control group and becomes the program. The end of the lease ends it.
    let status = Command::new(fabricctl)
        .args(["run", "--lease", &lease.lease_id().to_string(), "--"])
        .args(["grep", "Cpus_allowed_list", "/proc/self/status"])
        .status()?;
    println!("the program ended: {status}");

    lease.free()?;
    Ok(())
}
