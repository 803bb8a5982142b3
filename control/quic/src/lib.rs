//! The QUIC server in front of the lease table or of a scheduler: it authenticates peers and decodes their requests. And
//! [`Caller`], with which one member of a fabric asks another.
//!
//! It authenticates, limits and decodes; it never decides about a lease and never touches hardware. A valid request
//! reaches the daemon as [`PeerRequest`], by a call. A stream to a session of a GPU is copied to the session's
//! worker, which a [`SessionConnector`] connects. The frames are those of `docs/spec/fabricbios-wire-encoding-v0.md`.
//!
//! Read first: `conversation.rs`, from the bytes of a stream to a request and its answer.
#![forbid(unsafe_code)]

mod admission;
mod caller;
mod close;
mod conversation;
mod endpoint;
mod fair;
mod frame;
mod gpu_stream;
mod membership;
mod noise;
mod peer;
mod relay;
mod rights;
mod server;
mod session_places;
mod tls;
mod verifier;

pub use admission::Limits;
pub use caller::{CallError, Caller, Origin};
pub use fair::FairQueue;
pub use gpu_stream::{NoSessions, SessionConnector, SessionOpen};
pub use membership::Membership;
pub use peer::{PeerConnection, RequestPeer};
pub use server::{OnRequest, PeerRequest, Server, ServerError};
