//! Streams to sessions of GPUs. The workers are threads of the test.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail as loudly as tests"
)]

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use fabricbios_control::{Limits, SessionConnector, SessionOpen};
use fabricbios_fabric::Principal;
use fabricbios_wire::{
    GpuReply, GpuRequest, HEADER_LEN, Header, LeaseError, LeaseId, Refusal, RefusalClass, Reply,
    Request, Role, decode_gpu_answer, encode_gpu_request,
};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use tokio::sync::oneshot;

use crate::common::{Client, World};

const LEASE: LeaseId = LeaseId(0xA);

/// Connects each stream to a new thread that runs this function.
struct Workers<F>(F);

impl<F: Fn(UnixStream) + Clone + Send + Sync + 'static> SessionConnector for Workers<F> {
    fn connect(&self, _: &Principal, _: SessionOpen) -> Result<UnixStream, Refusal> {
        let (ours, its) = UnixStream::pair().unwrap();
        let work = self.0.clone();
        thread::spawn(move || work(its));
        Ok(ours)
    }
}

/// Connects each stream with this function.
struct By<F>(F);

impl<F> SessionConnector for By<F>
where
    F: Fn(&Principal, SessionOpen) -> Result<UnixStream, Refusal> + Send + Sync + 'static,
{
    fn connect(&self, principal: &Principal, open: SessionOpen) -> Result<UnixStream, Refusal> {
        (self.0)(principal, open)
    }
}

fn echo(stream: UnixStream) {
    // The client may be gone.
    io::copy(&mut &stream, &mut &stream).ok();
}

async fn world(work: impl Fn(UnixStream) + Clone + Send + Sync + 'static) -> World {
    World::with_sessions(Limits::default(), Arc::new(Workers(work))).await
}

fn open_frame(session: u64) -> Vec<u8> {
    let lease_id = LEASE;
    encode_gpu_request(5, 6, &GpuRequest::Open { lease_id, session })
}

/// Opens a stream and sends its first frame.
async fn open(client: &Client) -> (SendStream, RecvStream) {
    let (mut send, recv) = client.open().await;
    send.write_all(&open_frame(0)).await.unwrap();
    (send, recv)
}

/// Opens a stream and waits until its first frame comes back.
async fn open_echo(client: &Client) -> (SendStream, RecvStream) {
    let (send, mut recv) = open(client).await;
    let mut frame = vec![0; open_frame(0).len()];
    recv.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame, open_frame(0));
    (send, recv)
}

/// Sends this frame; the whole answer must be a refusal, which is returned.
async fn refusal(client: &Client, frame: &[u8]) -> Refusal {
    let (mut send, mut recv) = client.open().await;
    send.write_all(frame).await.ok();
    let bytes = recv.read_to_end(10_000).await.unwrap();
    let asked = Header::parse(frame.first_chunk::<HEADER_LEN>().unwrap()).unwrap();
    decode_gpu_answer(&asked, &bytes).unwrap().unwrap_err()
}

#[tokio::test]
async fn a_stream_reaches_the_worker_with_its_first_frame_and_comes_back() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let connect = move |principal: &Principal, open| {
        log.lock().unwrap().push((principal.clone(), open));
        Workers(echo).connect(principal, open)
    };
    let world = World::with_sessions(Limits::default(), Arc::new(By(connect))).await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = client.open().await;
    let frame = open_frame(7);
    // The frame goes in two parts. The next operation follows the second part.
    send.write_all(&frame[..30]).await.unwrap();
    send.write_all(&[&frame[30..], b"and so on"].concat())
        .await
        .unwrap();
    send.finish().unwrap();
    let all = recv.read_to_end(10_000).await.unwrap();
    assert_eq!(all, [&frame[..], b"and so on"].concat());
    let blue = Principal {
        tenant: "blue".into(),
        role: Role::Tenant,
    };
    let (lease_id, session) = (LEASE, 7);
    let asked = SessionOpen { lease_id, session };
    assert_eq!(*seen.lock().unwrap(), [(blue, asked)]);
    assert!(world.seen().is_empty(), "the driver is not bothered");
}

#[tokio::test]
async fn much_data_arrives_unchanged_both_ways() {
    const BYTES: usize = 24 << 20;
    let world = world(echo).await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = open_echo(&client).await;
    let sent: Vec<u8> = (0..BYTES)
        .map(|at| (at * 7 + (at >> 13)).to_le_bytes()[0])
        .collect();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
    });
    let got = recv.read_to_end(BYTES + 1).await.unwrap();
    sending.await.unwrap();
    assert!(got == expected, "{} bytes came back changed", got.len());
}

/// Waits until a count does not change any more, while the node answers another client. Returns the count.
async fn settled(world: &World, count: &AtomicU64) -> u64 {
    let other = world.connect(&world.tenant("red")).await;
    let mut last = (count.load(Ordering::Relaxed), 0);
    while last.1 < 200 {
        assert_eq!(other.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
        let now = count.load(Ordering::Relaxed);
        last = if now == last.0 {
            (now, last.1 + 1)
        } else {
            (now, 0)
        };
    }
    last.0
}

/// Bytes: more than fit in all buffers between a client and a worker.
const TOO_MUCH: u64 = 128 << 20;

#[tokio::test]
async fn a_worker_that_does_not_read_stops_the_client() {
    let (go, wait) = oneshot::channel::<()>();
    let wait = Arc::new(Mutex::new(Some(wait)));
    let world = world(move |stream| {
        let wait = wait.lock().unwrap().take().unwrap();
        wait.blocking_recv().ok();
        io::copy(&mut &stream, &mut io::sink()).unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = open(&client).await;
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let sending = tokio::spawn(async move {
        let piece = vec![1; 1 << 16];
        while count.load(Ordering::Relaxed) < TOO_MUCH {
            send.write_all(&piece).await.unwrap();
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        send.finish().unwrap();
    });
    let kept = settled(&world, &written).await;
    assert!(kept < TOO_MUCH / 2, "{kept} bytes are somewhere");
    go.send(()).unwrap();
    sending.await.unwrap();
    assert!(recv.read_to_end(1).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_worker() {
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let world = world(move |mut stream| {
        let piece = vec![1; 1 << 16];
        while count.load(Ordering::Relaxed) < TOO_MUCH {
            stream.write_all(&piece).unwrap();
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        // A close with unread bytes would reset the connection.
        stream
            .read_exact(&mut vec![0; open_frame(0).len()])
            .unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (_send, mut recv) = open(&client).await;
    let kept = settled(&world, &written).await;
    assert!(kept < TOO_MUCH / 2, "{kept} bytes are somewhere");
    let mut got = 0;
    while let Some(chunk) = recv.read_chunk(1 << 16, true).await.unwrap() {
        got += chunk.bytes.len() as u64;
    }
    assert_eq!(got, TOO_MUCH);
}

#[tokio::test]
async fn each_side_may_finish_before_the_other() {
    let world = world(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all.repeat(10_000)).unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = open(&client).await;
    send.finish().unwrap();
    let all = recv.read_to_end(10 << 20).await.unwrap();
    assert!(all == open_frame(0).repeat(10_000));
}

#[tokio::test]
async fn a_refused_session_is_an_answer_and_the_end_of_the_stream() {
    let refuse = |_: &Principal, open: SessionOpen| {
        let message = format!("session {} is over", open.session);
        Err(Refusal::new(
            LeaseError::NotFound,
            RefusalClass::Permanent,
            message,
        ))
    };
    let world = World::with_sessions(Limits::default(), Arc::new(By(refuse))).await;
    let client = world.connect(&world.tenant("blue")).await;
    let refused = refusal(&client, &open_frame(3)).await;
    assert_eq!(refused.error, LeaseError::NotFound);
    assert_eq!(refused.message, "session 3 is over");
    assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
}

#[tokio::test]
async fn a_connector_that_panics_is_an_answer_too() {
    let connect = |_: &Principal, _| panic!("a fault of the node");
    let world = World::with_sessions(Limits::default(), Arc::new(By(connect))).await;
    let client = world.connect(&world.tenant("blue")).await;
    let refused = refusal(&client, &open_frame(0)).await;
    assert_eq!(refused.error, LeaseError::Internal);
    assert!(!refused.message.contains("fault"), "{refused}");
}

#[tokio::test]
async fn what_opens_no_session_reaches_no_worker() {
    let connect = |_: &Principal, open| panic!("{open:?}");
    let world = World::with_sessions(Limits::default(), Arc::new(By(connect))).await;
    let client = world.connect(&world.tenant("blue")).await;
    let write = GpuRequest::MemWrite {
        memory: 1,
        offset: 0,
        length: 1 << 20,
    };
    let mut long_write = encode_gpu_request(1, 2, &write);
    long_write.resize(1 << 20, 0);
    let mut of_no_lease = open_frame(0);
    of_no_lease[HEADER_LEN..HEADER_LEN + 16].fill(0);
    let mut too_long = open_frame(0);
    too_long[HEADER_LEN - 1] += 1;
    too_long.push(0);
    for (frame, error, part) in [
        (&long_write, LeaseError::InvalidArgs, "open a session first"),
        (
            &encode_gpu_request(1, 2, &GpuRequest::Close),
            LeaseError::InvalidArgs,
            "0x060a",
        ),
        (&of_no_lease, LeaseError::InvalidArgs, "lease_id"),
        (&too_long, LeaseError::Malformed, "nothing more"),
    ] {
        let refused = refusal(&client, frame).await;
        assert_eq!(refused.error, error, "{refused}");
        assert!(refused.message.contains(part), "{refused}");
    }
}

#[tokio::test]
async fn a_node_without_gpus_says_so() {
    let world = World::start(crate::common::Handler::Refuse).await;
    let client = world.connect(&world.tenant("blue")).await;
    let refused = refusal(&client, &open_frame(0)).await;
    assert_eq!(refused.error, LeaseError::NotFound);
    assert!(refused.message.contains("no GPU"), "{refused}");
}

#[tokio::test]
async fn what_a_worker_said_before_it_died_arrives() {
    let world = world(|mut stream| {
        stream.write_all(b"half an ans").unwrap();
        // The close resets the connection, because the worker has not read its input.
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (send, mut recv) = open(&client).await;
    let all = recv.read_to_end(10_000).await.unwrap();
    assert_eq!(all, b"half an ans");
    let stopped = send.stopped().await.unwrap();
    assert_eq!(stopped, Some(VarInt::from_u32(0)));
}

#[tokio::test]
async fn the_worker_sees_when_its_client_is_gone() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let world = world(move |mut stream| {
        let mut all = vec![0];
        stream.read_exact(&mut all).unwrap();
        stream.write_all(&all).unwrap();
        all.clear();
        stream.read_to_end(&mut all).unwrap();
        tell.send(all.len()).unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    // A stream that the client resets before the node has read the first frame reaches no worker.
    let (mut send, mut recv) = open(&client).await;
    assert_eq!(recv.read_exact(&mut [0]).await, Ok(()));
    send.reset(VarInt::from_u32(0)).unwrap();
    assert_eq!(told.recv().await, Some(open_frame(0).len() - 1));
    assert!(recv.read_to_end(10).await.is_err());
    let (_send, mut recv) = open(&client).await;
    assert_eq!(recv.read_exact(&mut [0]).await, Ok(()));
    client.connection().close(VarInt::from_u32(0), b"");
    assert_eq!(told.recv().await, Some(open_frame(0).len() - 1));
}

#[tokio::test]
async fn a_tenant_has_so_many_streams_and_leaves_others_theirs() {
    let limits = Limits {
        session_streams_max: 3,
        session_streams_per_tenant_max: 2,
        ..Limits::default()
    };
    let world = World::with_sessions(limits, Arc::new(Workers(echo))).await;
    let blue = world.connect(&world.tenant("blue")).await;
    let red = world.connect(&world.tenant("red")).await;
    let (mut first, _recv) = open_echo(&blue).await;
    let _second = open_echo(&blue).await;
    let refused = refusal(&blue, &open_frame(0)).await;
    assert_eq!(
        (refused.error, refused.class),
        (LeaseError::ResourceBusy, RefusalClass::Transient)
    );
    let _third = open_echo(&red).await;
    let refused = refusal(&red, &open_frame(0)).await;
    assert!(refused.message.contains("on this node"), "{refused}");
    first.finish().unwrap();
    // The place of the first stream is free again when the node has seen its end.
    loop {
        let (mut send, mut recv) = open(&blue).await;
        send.finish().unwrap();
        if recv.read_to_end(10_000).await.unwrap() == open_frame(0) {
            break;
        }
    }
}

#[tokio::test]
async fn streams_to_sessions_take_no_place_of_a_request() {
    let limits = Limits {
        requests_per_connection_max: 1,
        ..Limits::default()
    };
    let world = World::with_sessions(limits, Arc::new(Workers(echo))).await;
    let client = world.connect(&world.tenant("blue")).await;
    let sessions = [
        open_echo(&client).await,
        open_echo(&client).await,
        open_echo(&client).await,
    ];
    assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
    drop(sessions);
    assert_eq!(client.call(&Request::Ping(2)).await, Ok(Reply::Pong(2)));
}

#[tokio::test]
async fn a_tenant_whose_workers_are_slow_to_start_leaves_others_half_of_the_starts() {
    let (started, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (tell, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let connect = move |principal: &Principal, open| {
        if &*principal.tenant == "slow" {
            tell.send(()).unwrap();
            wait.lock().unwrap().recv().ok();
        }
        Workers(echo).connect(principal, open)
    };
    let limits = Limits {
        session_openings_max: 2,
        ..Limits::default()
    };
    let world = World::with_sessions(limits, Arc::new(By(connect))).await;
    let slow = world.connect(&world.tenant("slow")).await;
    let quick = world.connect(&world.tenant("quick")).await;
    let (_send, mut recv) = open(&slow).await;
    waits.recv().await.unwrap();
    let refused = refusal(&slow, &open_frame(0)).await;
    assert!(
        refused.message.contains("being opened already"),
        "{refused}"
    );
    open_echo(&quick).await;
    started.send(()).unwrap();
    let mut frame = vec![0; open_frame(0).len()];
    recv.read_exact(&mut frame).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_cuts_streams_to_sessions_after_its_patience() {
    let (tell, told) = oneshot::channel();
    let tell = Arc::new(Mutex::new(Some(tell)));
    let mut world = world(move |stream| {
        echo(stream);
        tell.lock().unwrap().take().unwrap().send(()).unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (mut send, mut recv) = open_echo(&client).await;
    let stopping = world.shutdown(Duration::from_secs(2));
    // The stream works until the patience is over.
    send.write_all(b"still").await.unwrap();
    let mut back = [0; 5];
    recv.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"still");
    stopping.await.unwrap();
    told.await.unwrap();
    match recv.read(&mut back).await {
        Err(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close))) => {
            assert_eq!(close.error_code, VarInt::from_u32(1));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_certificate_of_its_client() {
    let world = world(echo).await;
    let client = world.connect(&world.expiring()).await;
    let (send, mut recv) = open_echo(&client).await;
    let ended = recv.read(&mut [0]).await.unwrap_err();
    let code = VarInt::from_u32(4);
    assert_eq!(ended, ReadError::Reset(code));
    let mut send = send;
    let stopped = send.write_all(&[0; 1_000]).await;
    assert!(
        matches!(stopped, Err(WriteError::Stopped(it)) if it == code),
        "{stopped:?}"
    );
}

/// The worker sends the answer to the first frame.
#[tokio::test]
async fn an_answer_of_a_worker_is_the_one_that_a_client_expects() {
    let world = world(|mut stream| {
        let mut frame = vec![0; open_frame(0).len()];
        stream.read_exact(&mut frame).unwrap();
        let (header, _) = fabricbios_wire::decode_gpu_request(&frame).unwrap();
        let opened = fabricbios_wire::GpuOpened {
            session: 9,
            vram_bytes: 1 << 30,
            vram_used: 0,
            queue_slots: 4,
            device: "a stand-in".into(),
            uuid: "GPU-1".into(),
        };
        let answer = fabricbios_wire::encode_gpu_answer(&header, &Ok(GpuReply::Opened(opened)));
        stream.write_all(&answer).unwrap();
    })
    .await;
    let client = world.connect(&world.tenant("blue")).await;
    let (_send, mut recv) = open(&client).await;
    let bytes = recv.read_to_end(10_000).await.unwrap();
    let asked = Header::parse(open_frame(0).first_chunk().unwrap()).unwrap();
    let answer = decode_gpu_answer(&asked, &bytes).unwrap().unwrap();
    assert!(matches!(answer, GpuReply::Opened(it) if it.session == 9));
}
