//! The provider with its store and paths in this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "provider/cases.rs"]
mod cases;
#[path = "provider/world.rs"]
mod world;

use std::sync::Arc;

use fabricbios_contract::{DataPath, Store};

fn path(path: Arc<dyn DataPath>) -> Arc<dyn DataPath> {
    path
}

fn store(store: Arc<dyn Store>) -> Arc<dyn Store> {
    store
}
