//! Leases block storage of a node and writes and reads blocks over UDP, without a block device and without root.
//! `block.sh` makes the lease a block device instead.
//!
//! ```console
//! $ export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
//! $ cargo run -p fabricbios-client --example blocks
//! ```

use fabricbios_client::{BlockBuilder, Error, wire::Transport};

fn main() -> Result<(), Error> {
    let lease = BlockBuilder::new()
        .bytes(4 << 20)
        .transport(Transport::Udp)
        .lease_secs(60)
        .acquire()?;

    let geometry = lease.geometry()?;
    println!(
        "{} blocks of {} bytes",
        geometry.blocks, geometry.block_bytes
    );
    let block_bytes = geometry.block_bytes as usize;
    let last = geometry.blocks - 1;

    let sent = vec![0xab; block_bytes];
    lease.write_blocks(last, &sent)?;
    lease.flush()?; // the block now survives a power cut of the node
    let mut back = vec![0; block_bytes];
    lease.read_blocks(last, &mut back)?;
    println!("block {last} has what was written: {}", back == sent);

    lease.free()?; // the blocks are wiped before anybody else has them
    Ok(())
}
