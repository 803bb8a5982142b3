//! A store or a path in another process: both ends of a socket between it and its [`crate::Provider`].
//!
//! The process that has it calls [`serve_path`] or [`serve_store`]; the other one has a [`RemotePath`] or
//! [`RemoteStore`], which is one like any other. The socket is a stream, `socketpair(AF_UNIX, SOCK_STREAM)`; each
//! message is a [`Frame`]. A descriptor, such as that of a part, travels beside the bytes (`SCM_RIGHTS`, unix(7)).
//!
//! Where the other process is gone, each call says so: what it was asked to make may be there, and what it was asked to
//! end may go on.

mod call;
mod client;
mod frame;
mod server;

pub use call::{Call, Told, decode, encode};
pub use client::{RemotePath, RemoteStore};
pub use frame::{FRAME_BYTES_MAX, Frame, Kind, VERSION, read_frame, write_frame};
pub use server::{serve_path, serve_store};
