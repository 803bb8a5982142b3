//! `perftest`: answers perftest's clients in place of their server, each with leases of its own.
//!
//! A client that has reached its server over TCP uses nothing but the coordinates that it gets there. So each of its queue
//! pairs gets a lease, and the node's device does the rest: neither a perftest server nor this program is on the data path.

mod client;
mod handshake;

use std::{
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use fabricbios_client::Node;
use fabricbios_wire::{RefusalClass, Size};

use self::client::Client;
use super::serve::{self, Event, Listening};
use crate::{
    args::Perftest,
    failure::{Exit, Failure},
    json::{Object, field},
    output::Output,
};

/// The most clients at a time.
const CLIENTS_MAX: usize = 64;

/// What all clients share.
struct Server {
    node: Node,
    /// Of each lease.
    bytes: u64,
    secs: u32,
    output: Output,
    /// Set before the connections are shut down.
    stops: AtomicBool,
}

/// Serves until SIGINT or SIGTERM, which the caller has blocked; then ends the leases of all clients.
pub(super) fn run(node: &Node, what: &Perftest, output: Output) -> Result<(), Failure> {
    let Listening {
        address, happened, ..
    } = serve::listen(what.listen)?;
    let server = Arc::new(Server {
        node: node.clone(),
        bytes: what.bytes,
        secs: what.secs,
        output,
        stops: AtomicBool::new(false),
    });
    let listening = Object::from([
        field("event", "listening"),
        field("address", address.to_string()),
    ]);
    output.print(&listening, || {
        let (size, secs) = (Size(what.bytes), what.secs);
        format!("perftest clients are served on {address}: each queue pair gets a lease of {size} for {secs} s")
    })?;
    let mut clients: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
    for event in happened {
        let Event::Client(stream, peer) = event else {
            break;
        };
        clients.retain(|(_, thread)| !thread.is_finished());
        if clients.len() == CLIENTS_MAX {
            let why = format!("{CLIENTS_MAX} clients are served already; try again later");
            let message = format!("client {peer}: {why}");
            let class = RefusalClass::Transient;
            Failure::new(Exit::Other, class, "Client", message).report(output);
            continue;
        }
        // Without a second handle of the connection the client could not be told to end.
        match stream.try_clone() {
            Ok(handle) => clients.push((handle, server.start(stream, peer))),
            Err(error) => {
                bad_client(peer, &error.to_string()).report(output);
            }
        }
    }
    server.stops.store(true, Ordering::Relaxed);
    for (stream, _) in &clients {
        // It fails if the client has gone.
        stream.shutdown(Shutdown::Both).ok();
    }
    for (_, thread) in clients {
        // A thread that has panicked has said so.
        thread.join().ok();
    }
    Ok(())
}

impl Server {
    fn start(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> JoinHandle<()> {
        let server = Arc::clone(self);
        thread::spawn(move || Client::new(&server, stream, peer).serve())
    }
}

/// The failure of one client; the others go on.
fn bad_client(peer: SocketAddr, why: &str) -> Failure {
    let message = format!("client {peer}: {why}");
    Failure::new(Exit::Other, RefusalClass::Permanent, "Client", message)
}
