//! The local socket of a node. Through it users of the machine move their own process or a network namespace into a
//! lease, or connect to the session of a lease. Root has the node join a fabric here.
//!
//! The socket is `SOCK_SEQPACKET`: a caller connects, sends one [`Request`] and receives one [`Reply`], each a JSON
//! object in one message. A request to enter a lease carries one descriptor: a pidfd of the caller itself, or a network
//! namespace. The node moves that process or namespace into the lease; the node starts no program for a caller. The
//! answer to a request for a session carries a descriptor too: a stream socket to the session's worker. The kernel
//! identifies the caller (`SO_PEERCRED`). docs/decisions/0023-local-socket.md has the reasons.
//!
//! Never here: a decision about who owns a lease.
//!
//! Read first: `message.rs`, the requests and answers.

#[cfg(feature = "client")]
mod client;
#[cfg(any(feature = "client", feature = "server"))]
mod directory;
mod message;
#[cfg(feature = "server")]
mod namespace;
#[cfg(feature = "server")]
mod peer;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "client")]
mod shared_memory;

#[cfg(feature = "client")]
pub use client::{AskError, ENV_SOCKET, Moved, enter, gpu_session, join, ping, remaining, run};
#[cfg(any(feature = "client", feature = "server"))]
pub use directory::{check_absolute, check_directory, make_passable};
#[cfg(feature = "server")]
pub use directory::{check_passable, is_shared};
pub use message::{REQUEST_BYTES_MAX, Reply, Request};
#[cfg(feature = "server")]
pub use server::{Join, LocalServer, Tenants};
#[cfg(feature = "client")]
pub use shared_memory::SharedMemory;

/// Path of the socket, unless [`ENV_SOCKET`] sets another one.
pub const DEFAULT_SOCKET: &str = "/run/fabricbios/local.sock";

#[cfg(any(feature = "client", feature = "server"))]
fn seqpacket() -> nix::Result<std::os::fd::OwnedFd> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}
