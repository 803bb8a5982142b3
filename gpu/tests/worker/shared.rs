//! Memory that a client on the node shares with a session.

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
};

use fabricbios_wire::{GpuReply, GpuRequest, GpuSharedCopy, LeaseError, RefusalClass};
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use crate::{
    client::{Answer, Client, refused},
    vendors,
    worker::Lab,
};

fn memory(bytes: u64) -> File {
    let memory = File::from(memfd_create("shared", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    memory.set_len(bytes).unwrap();
    fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    memory
}

fn share(client: &mut Client, memory: &File, length: u64) -> Answer {
    let asked = client.send_with(&GpuRequest::MemShare { length }, memory.as_fd());
    client.answer(&asked)
}

fn copy(memory: u64, offset: u64, shared_offset: u64, length: u64) -> GpuSharedCopy {
    GpuSharedCopy {
        memory,
        offset,
        shared_offset,
        length,
    }
}

#[test]
fn shared_memory_is_copied_both_ways() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let bytes = 9 << 20;
        let shared = memory(bytes);
        let data: Vec<u8> = (0..bytes).map(|it| (it % 253) as u8).collect();
        shared.write_all_at(&data, 0).unwrap();
        assert_eq!(share(&mut client, &shared, bytes), Ok(GpuReply::Done));
        let (buffer, _) = client.allocate(bytes);
        // More bytes than a frame could carry, at unaligned offsets.
        let length = bytes - 10;
        client.done(&GpuRequest::MemWriteShared(copy(buffer, 7, 3, length)), &[]);
        assert_eq!(
            client.read(buffer, 0, 9),
            [&[0; 7][..], &data[3..5]].concat()
        );
        client.done(&GpuRequest::MemReadShared(copy(buffer, 7, 0, length)), &[]);
        let mut back = vec![0; bytes as usize];
        shared.read_exact_at(&mut back, 0).unwrap();
        assert!(back[..length as usize] == data[3..][..length as usize]);
        assert!(back[length as usize..] == data[length as usize..]);
        // The next shared memory replaces the first.
        let other = memory(4096);
        other.write_all_at(&[6; 4096], 0).unwrap();
        assert_eq!(share(&mut client, &other, 4096), Ok(GpuReply::Done));
        client.done(&GpuRequest::MemWriteShared(copy(buffer, 0, 0, 4096)), &[]);
        assert_eq!(client.read(buffer, 0, 4096), [6; 4096]);
    }
}

#[test]
fn copies_stay_within_the_shared_memory() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (buffer, _) = client.allocate(8192);
        let invalid = |answer: &Answer, says: &str| {
            refused(
                answer,
                LeaseError::InvalidArgs,
                RefusalClass::Permanent,
                &[says],
            );
        };
        let none = client.ask(&GpuRequest::MemWriteShared(copy(buffer, 0, 0, 1)));
        invalid(&none, "0 bytes");
        let alone = client.ask(&GpuRequest::MemShare { length: 4096 });
        invalid(&alone, "no descriptor");
        let shared = memory(4096);
        invalid(&share(&mut client, &shared, 4097), "has 4096 bytes");
        let unsealed = File::from(memfd_create("unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        unsealed.set_len(4096).unwrap();
        invalid(&share(&mut client, &unsealed, 4096), "F_SEAL_SHRINK");
        assert_eq!(share(&mut client, &shared, 4096), Ok(GpuReply::Done));
        for wrong in [
            copy(buffer, 0, 4096, 1),
            copy(buffer, 0, 0, 4097),
            copy(buffer, 0, u64::MAX, 2),
        ] {
            invalid(
                &client.ask(&GpuRequest::MemWriteShared(wrong)),
                "4096 bytes",
            );
            invalid(&client.ask(&GpuRequest::MemReadShared(wrong)), "4096 bytes");
        }
        let past = client.ask(&GpuRequest::MemReadShared(copy(buffer, 8192, 0, 1)));
        invalid(&past, "8192 bytes");
        client.done(&GpuRequest::MemReadShared(copy(buffer, 8191, 4095, 1)), &[]);
        // Another stream has no shared memory.
        let none = worker
            .open()
            .ask(&GpuRequest::MemReadShared(copy(buffer, 0, 0, 1)));
        invalid(&none, "0 bytes");
    }
}
