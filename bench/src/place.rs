//! Directories, the client runtime and addresses for the benches.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use anyhow::Context;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A directory in `dir`; dropping it removes the directory.
pub(crate) fn place_in(dir: &Path) -> anyhow::Result<TempDir> {
    tempfile::tempdir_in(dir).with_context(|| format!("make a directory in {}", dir.display()))
}

/// The asynchronous runtime for clients.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

/// A free port, for servers that do not report the port that they get for port 0.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}
