//! A holder can use its own lease and nothing else.

use fabricbios_rdma::RequestError;

use crate::lab::{Lab, PAGE, binding_id, pages, pattern};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn written_bytes_are_read_back_and_lie_in_the_extent() {
    let lab = Lab::open();
    let extent = pages(3, 64);
    let (mut client, rdma) = lab.grant(1, extent);
    let rkey = rdma.rkey.unwrap();
    let sent = pattern(extent.length as usize);
    client.write(rkey, rdma.remote_addr, &sent).unwrap();
    let mut read = vec![0; sent.len()];
    client.read(rkey, rdma.remote_addr, &mut read).unwrap();
    assert!(read == sent, "bytes differ on the way back");
    assert!(lab.bytes(extent) == sent, "bytes differ in the arena");
    assert!(lab.bytes(pages(0, 3)).iter().all(|byte| *byte == 0));
    lab.cut_and_release(binding_id(1, 1), extent);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn another_key_is_refused() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let result = client.write(rdma.rkey.unwrap() ^ 1, rdma.remote_addr, &[7; 8]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_bytes_on_either_side_are_neither_read_nor_written() {
    let lab = Lab::open();
    let (mut reader, after) = lab.grant(1, pages(1, 1));
    let (mut writer, before) = lab.grant(2, pages(3, 1));
    let mut stolen = [0; 8];
    let read = reader.read(after.rkey.unwrap(), after.remote_addr + PAGE, &mut stolen);
    let facts = lab.rdma.inventory();
    assert_eq!(read, Err(RequestError::RemoteAccess), "{facts:?}");
    let written = writer.write(before.rkey.unwrap(), before.remote_addr - PAGE, &[7; 8]);
    assert_eq!(written, Err(RequestError::RemoteAccess), "{facts:?}");
    assert!(lab.bytes(pages(2, 1)).iter().all(|byte| *byte == 0));
    lab.cut_and_release(binding_id(1, 1), pages(1, 1));
    lab.cut_and_release(binding_id(2, 1), pages(3, 1));
    reader.close().unwrap();
    writer.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_write_over_the_end_is_refused_and_spares_the_neighbour() {
    let lab = Lab::open();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let (mut other, other_rdma) = lab.grant(2, pages(1, 1));
    let neighbour = pattern(PAGE as usize);
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &neighbour)
        .unwrap();
    let result = client.write(rdma.rkey.unwrap(), rdma.remote_addr + PAGE - 8, &[0xee; 16]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    assert!(
        lab.bytes(pages(1, 1)) == neighbour,
        "the neighbour's bytes changed"
    );
    // The connection of the neighbour goes on.
    other
        .write(other_rdma.rkey.unwrap(), other_rdma.remote_addr, &[1; 8])
        .unwrap();
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    lab.cut_and_release(binding_id(2, 1), pages(1, 1));
    client.close().unwrap();
    other.close().unwrap();
    lab.close();
}
