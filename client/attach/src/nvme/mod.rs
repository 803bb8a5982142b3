//! A namespace over NVMe-oF as a device: the kernel's NVMe host, its connections and their keys.

mod connect;
mod device;
mod host;
mod keys;

pub(crate) use device::{attach, disconnect};
pub(crate) use host::{NvmeHost, Target};
pub(crate) use keys::{differ, follow};
