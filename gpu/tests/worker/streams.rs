//! Streams: frames, queues of one session, and clients that disconnect.

use std::{io::Write, net::Shutdown, thread};

use fabricbios_wire::{
    GpuMessageType, GpuOpened, GpuReply, GpuRequest, HEADER_LEN, Header, LeaseError, LeaseId,
    RefusalClass, encode_gpu_request,
};

use crate::{
    client::{header, refused, write},
    vendors,
    worker::{LEASE, Lab, SESSION, VRAM},
};

const NOT_FOUND: (LeaseError, RefusalClass) = (LeaseError::NotFound, RefusalClass::Permanent);

#[test]
fn a_session_is_found_again_by_its_number() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, _) = client.allocate(4096);
        client.write(memory, 0, &[3; 4096]);
        drop(client);
        let mut client = worker.connect();
        let device = lab.order().device;
        let opened = GpuReply::Opened(GpuOpened {
            session: SESSION,
            vram_bytes: VRAM,
            vram_used: 4096,
            queue_slots: 16,
            device: device.name,
            uuid: device.uuid,
        });
        let open = |lease_id, session| GpuRequest::Open { lease_id, session };
        assert_eq!(client.ask(&open(LEASE, SESSION)), Ok(opened));
        assert_eq!(client.read(memory, 0, 4096), [3; 4096]);
        let again = client.ask(&open(LEASE, 0));
        refused(
            &again,
            LeaseError::InvalidArgs,
            RefusalClass::Permanent,
            &["opened its session already"],
        );
        let mut other = worker.connect();
        let says = [(SESSION + 1).to_string(), SESSION.to_string()];
        let says = says.each_ref().map(String::as_str);
        refused(
            &other.ask(&open(LEASE, SESSION + 1)),
            NOT_FOUND.0,
            NOT_FOUND.1,
            &says,
        );
        other.ended();
        let mut other = worker.connect();
        let lease = LeaseId(7);
        let says = [lease.to_string(), LEASE.to_string()];
        let says = says.each_ref().map(String::as_str);
        refused(&other.ask(&open(lease, 0)), NOT_FOUND.0, NOT_FOUND.1, &says);
        other.ended();
        let mut other = worker.connect();
        let first = other.ask(&GpuRequest::MemAlloc { bytes: 1 });
        refused(
            &first,
            LeaseError::InvalidArgs,
            RefusalClass::Permanent,
            &["open the session first"],
        );
        other.ended();
    }
}

#[test]
fn queues_share_the_buffers_of_the_session() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut one, mut other) = (worker.open(), worker.open());
        let (memory, _) = one.allocate(8192);
        one.write(memory, 0, &[1; 4096]);
        other.write(memory, 4096, &[2; 4096]);
        assert_eq!(one.read(memory, 4095, 2), [1, 2]);
        other.done(&GpuRequest::MemFree { memory }, &[]);
        let gone = one.ask(&GpuRequest::MemRead {
            memory,
            offset: 0,
            length: 1,
        });
        refused(&gone, NOT_FOUND.0, NOT_FOUND.1, &["does not exist"]);
        let gone = one.ask_with(&write(memory, 0, 5000), &[5; 5000]);
        refused(&gone, NOT_FOUND.0, NOT_FOUND.1, &["does not exist"]);
        // The worker has read the refused data, so it finds the next frame.
        one.sync();
    }
}

#[test]
fn a_client_may_send_ahead() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut client = worker.open();
    let (memory, _) = client.allocate(8 << 20);
    let data: Vec<u8> = (0..8_u32 << 20).map(|it| (it % 251) as u8).collect();
    let mut sender = client.socket.try_clone().unwrap();
    let requests: Vec<_> = data.chunks(4 << 20).zip([0, 4 << 20]).collect();
    let frames: Vec<_> = requests
        .iter()
        .map(|(part, at)| {
            (
                encode_gpu_request(9, 9, &write(memory, *at, part.len())),
                *part,
            )
        })
        .collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (frame, part) in &frames {
                sender.write_all(frame).unwrap();
                sender.write_all(part).unwrap();
            }
        });
        for (frame, _) in &frames {
            assert_eq!(client.answer(&header(frame)), Ok(GpuReply::Done));
        }
    });
    let read = [
        client.read(memory, 0, 4 << 20),
        client.read(memory, 4 << 20, 4 << 20),
    ]
    .concat();
    assert!(read == data);
}

#[test]
fn a_full_session_refuses_one_more_stream() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut clients: Vec<_> = (0..16).map(|_| worker.open()).collect();
    let mut more = worker.connect();
    let open = GpuRequest::Open {
        lease_id: LEASE,
        session: 0,
    };
    let busy = |answer| {
        refused(
            &answer,
            LeaseError::ResourceBusy,
            RefusalClass::Transient,
            &["16 streams"],
        );
    };
    busy(more.ask(&open));
    // This stream can only close the session.
    let other = more.ask(&GpuRequest::MemAlloc { bytes: 1 });
    refused(
        &other,
        LeaseError::InvalidArgs,
        RefusalClass::Permanent,
        &["only close"],
    );
    more.ended();
    let (memory, _) = clients[0].allocate(4096);
    clients[0].write(memory, 0, b"a tenant's bytes");
    assert!(lab.has(b"a tenant's bytes"));
    let mut more = worker.connect();
    busy(more.ask(&open));
    assert_eq!(more.close(), (4096, VRAM));
    assert_eq!(worker.ended(), Some(0));
    assert!(!lab.has(b"a tenant's bytes"));
    assert_eq!(worker.wiped(), format!("{SESSION}\n"));
}

#[test]
fn a_queue_that_ends_makes_room() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut clients: Vec<_> = (0..16).map(|_| worker.open()).collect();
    let mut last = clients.pop().unwrap();
    last.socket.shutdown(Shutdown::Write).unwrap();
    // The slot becomes free before the stream ends.
    last.ended();
    worker.open().sync();
}

#[test]
fn frames_that_are_none_are_answered_and_end_their_stream() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let sync = encode_gpu_request(
        1,
        1,
        &GpuRequest::Sync {
            whole_session: false,
        },
    );
    let with = |at: usize, byte: u8| {
        let mut frame = sync.clone();
        frame[at] = byte;
        frame
    };
    let wrong = [
        (with(0, 1), LeaseError::Unsupported, "version"),
        (with(1, 1), LeaseError::Unsupported, "flags"),
        (with(1, 0x80), LeaseError::Unsupported, "flags"),
        (with(3, 0xee), LeaseError::Unsupported, "msg_type"),
        (with(16, 0xff), LeaseError::Malformed, "payload_len"),
        (
            with(HEADER_LEN, 2),
            LeaseError::InvalidArgs,
            "whole_session",
        ),
    ];
    for (frame, error, says) in wrong {
        for is_open in [true, false] {
            let mut client = if is_open {
                worker.open()
            } else {
                worker.connect()
            };
            client.socket.write_all(&frame).unwrap();
            let asked = Header {
                flags: 0,
                ..split(&frame)
            };
            let answer = client.answer(&asked);
            refused(&answer, error, RefusalClass::Permanent, &[says]);
            client.ended();
        }
    }
    worker.open().sync();
}

/// The header of a frame, which may be wrong.
fn split(frame: &[u8]) -> Header {
    match Header::parse(frame[..HEADER_LEN].try_into().unwrap()) {
        Ok(header) => header,
        Err(rejected) => rejected.header.unwrap(),
    }
}

#[test]
fn a_stream_may_end_anywhere() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut keeper = worker.open();
    let (memory, _) = keeper.allocate(1 << 20);
    let (own, _) = keeper.allocate(100);
    let frame = encode_gpu_request(1, 1, &write(memory, 0, 1 << 20));
    for length in [
        0,
        1,
        HEADER_LEN - 1,
        HEADER_LEN,
        frame.len() - 1,
        frame.len(),
    ] {
        let mut client = worker.open();
        client.socket.write_all(&frame[..length]).unwrap();
        client.socket.shutdown(Shutdown::Write).unwrap();
        client.ended();
    }
    // A client disconnects in the middle of its data.
    let client = worker.open();
    (&client.socket).write_all(&frame).unwrap();
    (&client.socket).write_all(&vec![8; 700_000]).unwrap();
    drop(client);
    // A client disconnects without reading the answers to its reads.
    let mut client = worker.open();
    for _ in 0..8 {
        client.send(
            &GpuRequest::MemRead {
                memory,
                offset: 0,
                length: 1 << 20,
            },
            &[],
        );
    }
    drop(client);
    keeper.write(own, 0, &[4; 100]);
    assert_eq!(keeper.read(own, 0, 100), [4; 100]);
    assert_eq!(keeper.close().0, (1 << 20) + 100);
    assert_eq!(worker.ended(), Some(0));
}

#[test]
fn memory_may_be_freed_while_others_copy() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut owner = worker.open();
        for _ in 0..10 {
            let (memory, _) = owner.allocate(1 << 20);
            thread::scope(|scope| {
                for _ in 0..3 {
                    let mut client = worker.open();
                    scope.spawn(move || {
                        let data = vec![0xab; 1 << 20];
                        // Writes until the memory is gone.
                        let gone = loop {
                            match client.ask_with(&write(memory, 0, data.len()), &data) {
                                Ok(reply) => assert_eq!(reply, GpuReply::Done),
                                refusal => break refusal,
                            }
                        };
                        refused(&gone, NOT_FOUND.0, NOT_FOUND.1, &["does not exist"]);
                        client.sync();
                    });
                }
                owner.done(&GpuRequest::MemFree { memory }, &[]);
            });
            assert!(lab.is_clean());
        }
    }
}

#[test]
fn every_operation_has_its_number() {
    // The frames in the tests above use these numbers.
    let numbers = GpuMessageType::ALL.iter().map(|it| *it as u16);
    assert!(numbers.eq(0x0601..=0x060d));
}
