//! Clients that send operations and wait for no answer.

use std::{
    io::{self, Write},
    thread,
};

use fabricbios_wire::{GpuReply, GpuRequest, LeaseError, RefusalClass, encode_gpu_request};

use crate::{
    client::{Client, header, launch, refused, write},
    vendors,
    worker::{FAULT, FILL, Lab, SPIN},
};

/// Longer than any number of answers that a worker holds back.
const MANY: u32 = 300;
const WORDS: u32 = 64;
/// A worker takes no more than this from a client that reads no answer: what fits in the sockets.
const TAKEN_MAX: usize = 16 << 20;

const SYNC: GpuRequest = GpuRequest::Sync {
    whole_session: false,
};

/// Fills the memory with a word.
fn fill(module: u64, address: u64, word: u32) -> GpuRequest {
    let arguments: [&[u8]; 3] = [
        &address.to_le_bytes(),
        &word.to_le_bytes(),
        &WORDS.to_le_bytes(),
    ];
    let mut launch = launch(module, "fill", (1, 1), &arguments);
    launch.block[0] = WORDS;
    GpuRequest::Launch(launch)
}

/// Operations in one piece of bytes, each with its data, and the headers of their answers.
fn together(operations: &[(GpuRequest, &[u8])]) -> (Vec<u8>, Vec<fabricbios_wire::Header>) {
    let (mut bytes, mut headers) = (Vec::new(), Vec::new());
    for (number, (request, data)) in (1..).zip(operations) {
        let frame = encode_gpu_request(number, 5, request);
        headers.push(header(&frame));
        bytes.extend(frame);
        bytes.extend_from_slice(data);
    }
    (bytes, headers)
}

#[test]
fn launches_and_copies_are_done_and_answered_in_the_order_in_which_they_were_sent() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, address) = client.allocate(4 * u64::from(WORDS));
        let module = client.load(&lab.module(FILL));
        let mut operations: Vec<(GpuRequest, &[u8])> = Vec::new();
        for word in 0..MANY {
            operations.push((fill(module, address, word), &[]));
            operations.push((write(memory, 4, 4), b"data"));
        }
        operations.push((SYNC, &[]));
        let (bytes, headers) = together(&operations);
        let mut sender = client.socket.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&bytes).unwrap());
            for asked in &headers {
                assert_eq!(client.answer(asked), Ok(GpuReply::Done));
            }
        });
        let mut expected = (MANY - 1).to_le_bytes().repeat(WORDS as usize);
        expected[4..8].copy_from_slice(b"data");
        assert_eq!(client.read(memory, 0, 4 * WORDS), expected);
    }
}

#[test]
fn a_refusal_is_the_answer_of_its_operation_and_stops_none_behind_it() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut client = worker.open();
    let (memory, address) = client.allocate(4 * u64::from(WORDS));
    let module = client.load(&lab.module(FILL));
    let missing = GpuRequest::Launch(launch(module, "missing", (1, 1), &[]));
    let (bytes, headers) = together(&[
        (fill(module, address, 7), &[]),
        (missing, &[]),
        (write(memory, 4 * u64::from(WORDS), 1), &[9]),
        (write(memory, 0, 4), b"more"),
        (SYNC, &[]),
    ]);
    client.socket.write_all(&bytes).unwrap();
    let answers: Vec<_> = headers.iter().map(|asked| client.answer(asked)).collect();
    let permanent = RefusalClass::Permanent;
    refused(
        &answers[1],
        LeaseError::NotFound,
        permanent,
        &["\"missing\""],
    );
    refused(&answers[2], LeaseError::InvalidArgs, permanent, &[]);
    for done in [0, 3, 4] {
        assert_eq!(answers[done], Ok(GpuReply::Done), "{done}");
    }
    let read = client.read(memory, 0, 8);
    assert_eq!(read, [&b"more"[..], &7_u32.to_le_bytes()].concat());
}

#[test]
fn a_copy_behind_a_kernel_that_faults_is_not_answered_as_done() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, _) = client.allocate(4096);
        let modules = [SPIN, FAULT].map(|it| client.load(&lab.module(it)));
        // The fault comes when the copy behind it is queued.
        let spin = launch(modules[0], "spin", (1, 1), &[&20_000_000_u64.to_le_bytes()]);
        let fault = launch(modules[1], "fault", (1, 1), &[]);
        let (bytes, headers) = together(&[
            (GpuRequest::Launch(spin), &[]),
            (GpuRequest::Launch(fault), &[]),
            (write(memory, 0, 4), b"late"),
        ]);
        client.socket.write_all(&bytes).unwrap();
        assert_eq!(client.answer(&headers[0]), Ok(GpuReply::Done));
        assert_eq!(client.answer(&headers[1]), Ok(GpuReply::Done));
        let copied = client.answer(&headers[2]).unwrap_err();
        let faults = [LeaseError::InvalidArgs, LeaseError::Unavailable];
        assert!(faults.contains(&copied.error), "{copied}");
        client.ended();
        assert_eq!(worker.ended(), Some(3));
    }
}

#[test]
fn answers_wait_for_no_operation_that_is_not_whole() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut client = worker.open();
    let (memory, _) = client.allocate(4096);
    let (bytes, headers) = together(&[(SYNC, &[]), (write(memory, 0, 6), b"inside")]);
    let first = encode_gpu_request(1, 5, &SYNC).len();
    // A header, a payload and data that break off.
    for end in [first + 1, first + 25, bytes.len() - 1] {
        client.socket.write_all(&bytes[..end]).unwrap();
        assert_eq!(client.answer(&headers[0]), Ok(GpuReply::Done), "{end}");
        client.socket.write_all(&bytes[end..]).unwrap();
        assert_eq!(client.answer(&headers[1]), Ok(GpuReply::Done), "{end}");
    }
    assert_eq!(client.read(memory, 0, 6), b"inside");
}

/// Writes until the worker takes no more; the bytes that it took.
fn flood(client: &Client, operation: &[u8]) -> usize {
    client.socket.set_nonblocking(true).unwrap();
    let (mut taken, mut refused) = (0, 0);
    // The worker takes nothing over many looks: it waits for this client.
    while refused < 1_000 {
        match (&client.socket).write(operation) {
            Ok(bytes) => (taken, refused) = (taken + bytes, 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                refused += 1;
                thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(taken < TAKEN_MAX, "{taken} bytes without an answer read");
    }
    taken
}

#[test]
fn a_client_that_reads_no_answer_is_read_no_further_and_holds_nobody_up() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let (silent, mut other) = (worker.open(), worker.open());
    let (memory, address) = other.allocate(4 * u64::from(WORDS));
    let module = other.load(&lab.module(FILL));
    let launch = encode_gpu_request(1, 5, &fill(module, address, 1));
    assert!(flood(&silent, &launch) > 0);
    other.write(memory, 0, b"goes on");
    other.sync();
    // It may close the session too.
    assert_eq!(other.close().0, 4 * u64::from(WORDS));
    assert_eq!(worker.ended(), Some(0));
}
