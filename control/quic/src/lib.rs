//! The QUIC server in front of the lease table: it authenticates peers and decodes their requests.
//!
//! It authenticates, limits and decodes; it never decides about a lease and never touches hardware. A valid request
//! reaches the daemon as [`PeerRequest`], by a call. A stream to a session of a GPU is copied to the session's
//! worker, which a [`SessionConnector`] connects. The frames are those of `docs/spec/fabricbios-wire-encoding-v0.md`.
//!
//! Read first: `conversation.rs`, from the bytes of a stream to a request and its answer.
#![forbid(unsafe_code)]

mod admission;
mod ca;
mod close;
mod conversation;
mod durable;
mod endpoint;
mod error;
mod fabric;
mod frame;
mod gpu_stream;
mod noise;
mod principal;
mod relay;
mod server;
mod session_places;
mod tls;

pub use admission::Limits;
pub use ca::{Ca, DEFAULT_VALIDITY, NODE_DNS_NAME};
pub use error::{BadCertificate, FileProblem, IdentityError};
pub use fabric::{Fabric, NodeKeys};
pub use gpu_stream::{NoSessions, SessionConnector, SessionOpen};
pub use principal::{Peer, Principal};
pub use server::{OnRequest, PeerRequest, Server, ServerError};
