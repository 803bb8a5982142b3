//! TCP between two programs, which a test slows, silences or cuts. TLS passes through.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::sleep_until,
};

/// What becomes of the bytes from one program to another, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Open,
    /// Each byte comes so much later.
    Late(Duration),
    /// Connections stay, and their bytes come when the way is open again.
    Silent,
    /// Connections end, also new ones.
    Cut,
}

/// Sets the way.
pub(crate) type Gate = watch::Sender<Way>;

pub(crate) fn gate() -> Gate {
    watch::Sender::new(Way::Open)
}

/// Cuts the way, and waits until its connections have ended.
pub(crate) async fn cut(gate: &Gate) {
    gate.send_replace(Way::Cut);
    gate.closed().await;
}

/// A new way to a server. Returns where it begins.
pub(crate) fn way_to(server: SocketAddr) -> (SocketAddr, Gate) {
    let gate = gate();
    let of = gate.clone();
    (listen(server, move |_| Some(of.subscribe())), gate)
}

/// Passes on what comes to the returned address: each connection by the way that `of` names for its port, or by none.
pub(crate) fn listen(
    server: SocketAddr,
    of: impl Fn(u16) -> Option<watch::Receiver<Way>> + Send + 'static,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        while let Ok((client, from)) = listener.accept().await {
            if let Some(way) = of(from.port()) {
                tokio::spawn(connect(client, server, way));
            }
        }
    });
    at
}

async fn connect(client: TcpStream, server: SocketAddr, way: watch::Receiver<Way>) {
    let mut cut = way.clone();
    let passed = async {
        // A server that is gone is gone for the client too.
        let server = TcpStream::connect(server).await.ok()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true).ok()?;
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = pass(from_client, to_server, way.clone()) => {}
            () = pass(from_server, to_client, way) => {}
        }
        Some(())
    };
    tokio::select! {
        _ = passed => {}
        _ = cut.wait_for(|it| *it == Way::Cut) => {}
    }
}

/// Returns when one end is gone.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: watch::Receiver<Way>) {
    let (sender, mut under_way) = mpsc::channel(64);
    let of_reading = way.clone();
    let read = async {
        loop {
            let mut bytes = vec![0; 16 << 10];
            let Ok(length @ 1..) = from.read(&mut bytes).await else {
                break;
            };
            bytes.truncate(length);
            let late = match *of_reading.borrow() {
                Way::Late(late) => late,
                _ => Duration::ZERO,
            };
            if sender.send((Instant::now() + late, bytes)).await.is_err() {
                break;
            }
        }
    };
    let write = async {
        while let Some((due, bytes)) = under_way.recv().await {
            sleep_until(due.into()).await;
            let is_open = way.wait_for(|it| *it != Way::Silent).await.is_ok();
            if !is_open || to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
