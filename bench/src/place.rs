//! What several benches run in and on.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use anyhow::Context;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// A directory in `dir` that goes when it is dropped.
pub(crate) fn place_in(dir: &Path) -> anyhow::Result<TempDir> {
    tempfile::tempdir_in(dir).with_context(|| format!("make a directory in {}", dir.display()))
}

/// For clients.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

/// For servers that do not tell which port they got when asked for any.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}
