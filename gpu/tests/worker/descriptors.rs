//! Descriptors that a client sends and no operation takes: the worker closes them all.

use std::{
    io::{PipeReader, PipeWriter, pipe},
    os::fd::AsFd,
};

use fabricbios_wire::{
    GpuReply, GpuRequest, HEADER_LEN, LeaseError, RefusalClass, encode_gpu_request,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    client::{Answer, Client, header, refused, write},
    vendors,
    worker::{LEASE, Lab},
};

const OPEN: GpuRequest = GpuRequest::Open {
    lease_id: LEASE,
    session: 0,
};
const SYNC: GpuRequest = GpuRequest::Sync {
    whole_session: false,
};

/// A pipe whose write end is sent to the worker.
struct Sent(PipeReader, PipeWriter);

impl Sent {
    fn new() -> Self {
        let (reader, writer) = pipe().unwrap();
        Self(reader, writer)
    }

    /// Waits until no process has the write end.
    fn closes(self) {
        let Self(reader, writer) = self;
        drop(writer);
        let mut ends = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        let closed = poll(&mut ends, PollTimeout::from(60_000_u16)).unwrap();
        assert_eq!(closed, 1, "the worker keeps a descriptor");
    }
}

fn malformed(client: &mut Client, answer: &Answer) {
    let class = RefusalClass::Permanent;
    refused(answer, LeaseError::Malformed, class, &["descriptors"]);
    client.ended();
}

#[test]
fn a_frame_with_several_descriptors_is_malformed() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        for count in [2, 3, 100, 253].repeat(20) {
            for request in [OPEN, GpuRequest::MemShare { length: 4096 }] {
                let mut client = match request {
                    OPEN => worker.connect(),
                    _ => worker.open(),
                };
                let sent = Sent::new();
                let asked = client.send_with_many(&request, sent.1.as_fd(), count);
                let answer = client.answer(&asked);
                malformed(&mut client, &answer);
                sent.closes();
            }
        }
    }
}

#[test]
fn descriptors_beside_parts_of_a_header_are_as_many_beside_one() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let sent = Sent::new();
        let frame = encode_gpu_request(9, 7, &GpuRequest::MemShare { length: 4096 });
        for part in frame[..HEADER_LEN].chunks(7) {
            client.send_bytes_with(part, sent.1.as_fd(), 1);
        }
        let answer = client.answer(&header(&frame));
        malformed(&mut client, &answer);
        sent.closes();
    }
}

#[test]
fn a_descriptor_that_an_operation_does_not_take_is_closed_before_it_is_done() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        for _ in 0..20 {
            let mut client = worker.connect();
            let sent = Sent::new();
            let asked = client.send_with(&OPEN, sent.1.as_fd());
            sent.closes();
            assert!(client.answer(&asked).is_ok());
            let sent = Sent::new();
            let asked = client.send_with(&SYNC, sent.1.as_fd());
            sent.closes();
            assert_eq!(client.answer(&asked), Ok(GpuReply::Done));
        }
        let (memory, _) = client.allocate(4096);
        let sent = Sent::new();
        let asked = client.send_with(&write(memory, 0, 4096), sent.1.as_fd());
        // The descriptor closes while the worker still waits for the data.
        sent.closes();
        std::io::Write::write_all(&mut client.socket, &[5; 4096]).unwrap();
        assert_eq!(client.answer(&asked), Ok(GpuReply::Done));
        assert_eq!(client.read(memory, 0, 4096), [5; 4096]);
    }
}
