//! Copies to and from a GPU: how they are split, how far ahead they are sent, and what a refusal in the middle leaves.

use std::{
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use fabricbios_client::{Error, GpuSession, LocalOptions, MemoryHandle};
use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_local::{LocalServer, Tenants};
use fabricbios_wire::{
    GPU_COPY_BYTES_MAX, GpuOpened, GpuReply, GpuRequest, HEADER_LEN, Header, LeaseId,
    decode_gpu_request, encode_gpu_answer,
};

use crate::{
    common::{
        LEASE,
        gpu::{Act, FakeGpu, invalid},
    },
    gpu_sessions::{leased, local_socket},
};

const PIECE: usize = GPU_COPY_BYTES_MAX as usize;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 31 + (at >> 12)).to_le_bytes()[0])
        .collect()
}

#[test]
fn a_long_copy_arrives_in_pieces_with_progress() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let bytes = pattern(3 * PIECE + 5);
    let memory = session.mem_alloc(bytes.len() as u64 + 1).unwrap();
    let mut progress = Vec::new();
    session
        .mem_write_with_progress(&memory, 1, &bytes, |done| progress.push(done))
        .unwrap();
    let piece = PIECE as u64;
    let expected = [piece, 2 * piece, 3 * piece, 3 * piece + 5];
    assert_eq!(progress, expected);
    let (mut back, mut progress) = (vec![0; bytes.len()], Vec::new());
    session
        .mem_read_with_progress(&memory, 1, &mut back, |done| progress.push(done))
        .unwrap();
    assert!(back == bytes);
    assert_eq!(progress, expected);
    let log = node.gpu().log();
    let pieces = log.iter().filter_map(|request| match request {
        GpuRequest::MemWrite { offset, length, .. } => Some((*offset, *length)),
        _ => None,
    });
    let full = GPU_COPY_BYTES_MAX;
    let places = [1, 1 + piece, 1 + 2 * piece, 1 + 3 * piece];
    assert!(pieces.eq(places.into_iter().zip([full, full, full, 5])));
}

#[test]
fn copies_on_the_node_go_through_shared_memory() {
    let gpu = FakeGpu::default();
    let (_directory, path, _server) = local_socket(&gpu);
    for shared_bytes in [1_000, 64 << 10, 1 << 20] {
        let options = LocalOptions::default().shared_bytes(shared_bytes);
        let session = GpuSession::local_with(&LEASE, &path, options).unwrap();
        let bytes = pattern((1 << 20) + 77);
        let memory = session.mem_alloc(bytes.len() as u64).unwrap();
        let mut last = 0;
        session
            .mem_write_with_progress(&memory, 0, &bytes, |done| last = done)
            .unwrap();
        assert_eq!(last, bytes.len() as u64);
        let mut back = vec![0; bytes.len()];
        session.mem_read(&memory, 0, &mut back).unwrap();
        assert!(back == bytes, "{shared_bytes}");
        // Two queues do not disturb each other.
        let other = session.queue().unwrap();
        thread::scope(|scope| {
            for (session, at) in [(&session, 0), (&other, 600_000)] {
                let (memory, bytes) = (&memory, &bytes);
                scope.spawn(move || {
                    let part = &bytes[at..at + 400_000];
                    session.mem_write(memory, at as u64, part).unwrap();
                    let mut back = vec![0; part.len()];
                    session.mem_read(memory, at as u64, &mut back).unwrap();
                    assert!(back == part);
                });
            }
        });
    }
    let through_stream =
        |it: &GpuRequest| matches!(it, GpuRequest::MemWrite { .. } | GpuRequest::MemRead { .. });
    assert!(!gpu.log().iter().any(through_stream));
}

#[test]
fn bytes_that_are_in_shared_memory_are_copied_from_there() {
    let gpu = FakeGpu::default();
    let (_directory, path, _server) = local_socket(&gpu);
    let session = GpuSession::local(&LEASE, &path).unwrap();
    let memory = session.mem_alloc(100).unwrap();
    let shared = session.shared_memory().unwrap();
    shared.write(50, b"in place").unwrap();
    session.mem_write_shared(&memory, 9, 50, 8).unwrap();
    session.mem_read_shared(&memory, 12, 0, 5).unwrap();
    let mut bytes = [0; 5];
    shared.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"place");
    let end = shared.bytes() as u64;
    for (at, length) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (0, 0)] {
        let error = session
            .mem_write_shared(&memory, 0, at, length)
            .unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error:?}");
    }
}

#[test]
fn a_worker_that_takes_no_shared_memory_gets_the_bytes_through_the_socket() {
    let gpu = FakeGpu::default();
    let (_directory, path, _server) = local_socket(&gpu);
    gpu.script(|request| match request {
        GpuRequest::MemShare { .. } => Act::Refuse(invalid("no more locked memory")),
        _ => Act::Do,
    });
    let session = GpuSession::local(&LEASE, &path).unwrap();
    let bytes = pattern(PIECE + 1);
    let memory = session.mem_alloc(bytes.len() as u64).unwrap();
    session.mem_write(&memory, 0, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    session.mem_read(&memory, 0, &mut back).unwrap();
    assert!(back == bytes);
}

#[test]
fn a_refusal_in_the_middle_of_a_copy_is_told_and_the_stream_goes_on() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(100 << 20).unwrap();
    let mut pieces = 0;
    node.gpu().script(move |request| match request {
        GpuRequest::MemWrite { .. } | GpuRequest::MemRead { .. } => {
            pieces += 1;
            match pieces {
                3 | 4 => Act::Refuse(invalid(&format!("piece {pieces}"))),
                _ => Act::Do,
            }
        }
        _ => Act::Do,
    });
    let mut last = 0;
    let error = session
        .mem_write_with_progress(&memory, 0, &vec![1; 100 << 20], |done| last = done)
        .unwrap_err();
    assert_eq!(error.to_string(), "piece 3", "the first one counts");
    let sent = node.gpu().log().len() - 1;
    assert!(sent < 25, "{sent} pieces were sent after a refusal");
    assert_eq!(last, (sent as u64 - 2) * PIECE as u64);
    let mut back = [0; 4];
    session.mem_read(&memory, 0, &mut back).unwrap();
    assert_eq!(back, [1; 4]);
    let mut pieces = 0;
    node.gpu().script(move |_| {
        pieces += 1;
        match pieces {
            2 => Act::Refuse(invalid("this piece")),
            _ => Act::Do,
        }
    });
    let error = session
        .mem_read(&memory, 0, &mut vec![0; 3 * PIECE])
        .unwrap_err();
    assert_eq!(error.to_string(), "this piece");
    session.mem_read(&memory, 0, &mut back).unwrap();
    assert_eq!(back, [1; 4]);
    assert_eq!(node.gpu().opened(), [0], "all in one stream");
}

#[test]
fn a_stream_that_hangs_up_in_a_copy_is_opened_again_for_the_next_call() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(10).unwrap();
    let mut is_first = true;
    node.gpu().script(move |request| match request {
        GpuRequest::MemRead { .. } if std::mem::take(&mut is_first) => Act::Hang,
        _ => Act::Do,
    });
    let error = session.mem_read(&memory, 0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error, Error::SessionEnded { .. }), "{error:?}");
    session.mem_read(&memory, 0, &mut [0; 10]).unwrap();
    assert_eq!(node.gpu().opened(), [0, 7]);
}

/// A worker whose answers the test sends itself.
struct ByHand(Mutex<Option<UnixStream>>);

impl LocalAccess for ByHand {
    fn enter(&self, _: LeaseId, _: &Caller, _: Given) -> Result<Entered, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    fn session(&self, _: LeaseId, _: &Caller, _: u64) -> Result<OwnedFd, LocalRefusal> {
        Ok(self.0.lock().unwrap().take().unwrap().into())
    }
}

struct Hand(UnixStream);

impl Hand {
    /// The next request and its data.
    fn next(&mut self) -> (Header, GpuRequest) {
        let mut frame = vec![0; HEADER_LEN];
        self.0.read_exact(&mut frame).unwrap();
        let header = Header::parse(frame.first_chunk().unwrap()).unwrap();
        frame.resize(HEADER_LEN + usize::try_from(header.payload_len).unwrap(), 0);
        self.0.read_exact(&mut frame[HEADER_LEN..]).unwrap();
        let (_, request) = decode_gpu_request(&frame).unwrap();
        io::copy(
            &mut (&self.0).take(request.data_bytes() as u64),
            &mut io::sink(),
        )
        .unwrap();
        (header, request)
    }

    fn answer(&mut self, to: &Header, reply: GpuReply) {
        let data = match reply {
            GpuReply::Data { length } => usize::try_from(length).unwrap(),
            _ => 0,
        };
        self.0
            .write_all(&encode_gpu_answer(to, &Ok(reply)))
            .unwrap();
        self.0.write_all(&vec![5; data]).unwrap();
    }

    /// Whether the client sends nothing more within the wait.
    fn is_quiet(&mut self) -> bool {
        let patience = Some(Duration::from_millis(200));
        self.0.set_read_timeout(patience).unwrap();
        let read = self.0.read(&mut [0]);
        self.0.set_read_timeout(None).unwrap();
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

#[test]
fn sixteen_pieces_are_on_their_way_and_no_more() {
    let (ours, its) = UnixStream::pair().unwrap();
    let (directory, path, server) = local_socket(&FakeGpu::default());
    drop(server);
    let tenants = Tenants::from([(nix::unistd::geteuid().as_raw(), Vec::new())]);
    let by_hand = Arc::new(ByHand(Mutex::new(Some(its))));
    let _server = LocalServer::open(&path, tenants, vec![by_hand], None).unwrap();
    let client = thread::spawn(move || {
        let options = LocalOptions::default().shared_bytes(0);
        let session = GpuSession::local_with(&LEASE, &path, options).unwrap();
        let memory = session.memory(MemoryHandle {
            session: 3,
            memory: 1,
            address: 1,
            bytes: 20 * PIECE as u64,
        });
        let mut bytes = vec![1; 20 * PIECE];
        session.mem_write(&memory, 0, &bytes).unwrap();
        session.mem_read(&memory, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|it| *it == 5));
        memory.keep();
    });
    let mut worker = Hand(ours);
    let (header, open) = worker.next();
    let (lease_id, session) = (LEASE, 0);
    assert_eq!(open, GpuRequest::Open { lease_id, session });
    let opened = GpuOpened {
        session: 3,
        vram_bytes: 1 << 40,
        vram_used: 0,
        queue_slots: 1,
        device: "a hand".into(),
        uuid: "GPU-1".into(),
    };
    worker.answer(&header, GpuReply::Opened(opened));
    for (count, reply) in [
        (20, GpuReply::Done),
        (
            20,
            GpuReply::Data {
                length: GPU_COPY_BYTES_MAX,
            },
        ),
    ] {
        let mut sent: Vec<Header> = (0..16).map(|_| worker.next().0).collect();
        assert!(worker.is_quiet(), "a seventeenth piece");
        for _ in 16..count {
            worker.answer(&sent.remove(0), reply.clone());
            sent.push(worker.next().0);
        }
        for header in sent {
            worker.answer(&header, reply.clone());
        }
    }
    client.join().unwrap();
    drop(directory);
}
