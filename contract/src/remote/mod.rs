//! A store or a path in another process: both ends of a socket between it and its [`crate::Provider`].
//!
//! The process with the path or store calls [`serve_path`] or [`serve_store`]; the other process uses a [`RemotePath`]
//! or [`RemoteStore`] like any other path or store. The socket is a stream, `socketpair(AF_UNIX, SOCK_STREAM)`; each
//! message is a [`Frame`]. A descriptor, such as that of a part, travels beside the bytes (`SCM_RIGHTS`, unix(7)).
//!
//! If the other process is gone, each call fails with an error: what the call should make may exist, and what the call
//! should end may go on.

mod call;
mod client;
mod frame;
mod server;

pub use call::{Call, Told, decode, encode};
pub use client::{RemotePath, RemoteStore};
pub use frame::{FRAME_BYTES_MAX, Frame, Kind, VERSION, read_frame, write_frame};
pub use server::{serve_path, serve_store};
