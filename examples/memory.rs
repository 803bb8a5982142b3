//! Leases memory of a node, writes and reads it, and gives it back.
//!
//! ```console
//! $ export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
//! $ cargo run -p fabricbios-client --example memory
//! ```

use fabricbios_client::{Error, MemBuilder};

fn main() -> Result<(), Error> {
    // The lease renews itself until it is freed or dropped.
    let lease = MemBuilder::new().bytes(1 << 20).lease_secs(60).acquire()?;

    let sent = b"written to the memory of another machine";
    lease.write(4096, sent)?; // over RDMA if lease and host have it, else over UDP
    let mut back = vec![0; sent.len()];
    lease.read(4096, &mut back)?;
    println!("read back: {}", String::from_utf8_lossy(&back));
    if let Some(transport) = lease.transport() {
        println!("transport: {}", transport.name());
    }

    let ended = lease.free()?; // answered when access is proved gone
    println!("{}: {}", ended.lease_id, ended.phase);
    Ok(())
}
