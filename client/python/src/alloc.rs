//! Requests for leases, a function for each kind.

use std::{path::PathBuf, str::FromStr, thread, time::Duration};

use fabricbios_client::{
    BlockBuilder, Builder, CpuBuilder, DataTransport, GpuBuilder, Identity, Kind, MemBuilder,
    NetBuilder, Storage, Transfers,
};
use pyo3::prelude::*;

use crate::{
    calls::call,
    errors::usage,
    lease::{AnyLease, Lease},
};

/// What every request has.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Common {
    node: Option<String>,
    node_id: Option<String>,
    identity: Option<PathBuf>,
    secs: u32,
    resource: Option<String>,
    affinity: Vec<String>,
    auto_renew: bool,
    patience_secs: f64,
}

/// What requests for memory and blocks have too.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Stored {
    bytes: u64,
    grace_secs: u32,
    transport: String,
    rotate_on_renew: bool,
    data_transport: Option<String>,
    payload_mac: bool,
    give_up_secs: Option<f64>,
}

impl Common {
    fn apply<K: Kind>(&self, py: Python<'_>, builder: Builder<K>) -> PyResult<Builder<K>> {
        let mut builder = builder
            .lease_secs(self.secs)
            .auto_renew(self.auto_renew)
            .patience(duration(py, "patience_secs", self.patience_secs)?);
        if let Some(node) = &self.node {
            builder = builder.node(node);
        }
        if let Some(id) = parsed(py, "node_id", self.node_id.as_deref())? {
            builder = builder.node_id(id);
        }
        if let Some(id) = parsed(py, "resource", self.resource.as_deref())? {
            builder = builder.resource(id);
        }
        for text in &self.affinity {
            let affinity = fabricbios_client::affinity(text);
            let wrong = |why| usage(py, format!("affinity {text:?}: {why}"));
            builder = builder.affinity(affinity.map_err(wrong)?);
        }
        Ok(builder)
    }
}

impl Stored {
    fn apply<K: Storage>(&self, py: Python<'_>, builder: Builder<K>) -> PyResult<Builder<K>> {
        let mut transfers = Transfers::default().payload_mac(self.payload_mac);
        match self.data_transport.as_deref() {
            None => {}
            Some("rdma") => transfers = transfers.transport(DataTransport::Rdma),
            Some("udp") => transfers = transfers.transport(DataTransport::Udp),
            Some(other) => {
                let why = format!("data_transport {other:?}: write \"rdma\" or \"udp\"");
                return Err(usage(py, why));
            }
        }
        if let Some(secs) = self.give_up_secs {
            transfers = transfers.give_up(duration(py, "give_up_secs", secs)?);
        }
        let transport = value(py, "transport", &self.transport)?;
        let builder = builder
            .bytes(self.bytes)
            .grace_secs(self.grace_secs)
            .transport(transport)
            .transfers(transfers);
        Ok(match self.rotate_on_renew {
            true => builder.rotate_on_renew(),
            false => builder,
        })
    }
}

/// Leases memory.
#[pyfunction]
pub(crate) fn mem(
    py: Python<'_>,
    common: Common,
    stored: Stored,
    kv_cache: Option<(String, u32)>,
) -> PyResult<Lease> {
    let mut builder = stored.apply(py, MemBuilder::new())?;
    if let Some((tier, block_bytes)) = kv_cache {
        let tier = value(py, "the tier of intent_kv_cache", &tier)?;
        builder = builder.kv_cache(fabricbios_client::wire::KvCacheIntent { tier, block_bytes });
    }
    acquire(py, common, builder, AnyLease::Mem)
}

/// Leases block storage.
#[pyfunction]
pub(crate) fn block(
    py: Python<'_>,
    common: Common,
    stored: Stored,
    read_only: bool,
    hostnqn: Option<&str>,
    hostid: Option<&str>,
    mutual_auth: bool,
) -> PyResult<Lease> {
    let mut builder = stored.apply(py, BlockBuilder::new())?;
    if read_only {
        builder = builder.read_only();
    }
    if mutual_auth {
        builder = builder.mutual_auth();
    }
    match (
        parsed(py, "hostnqn", hostnqn)?,
        parsed(py, "hostid", hostid)?,
    ) {
        (Some(name), id) => builder = builder.host(name, id),
        (None, Some(_)) => return Err(usage(py, "hostid is given without hostnqn: give both")),
        (None, None) => {}
    }
    acquire(py, common, builder, AnyLease::Block)
}

/// Leases CPU cores.
#[pyfunction]
pub(crate) fn cpu(
    py: Python<'_>,
    common: Common,
    cores: u16,
    isolation: Option<&str>,
    execution_mode: Option<&str>,
    execution_width: Option<u16>,
    partition: Option<&str>,
) -> PyResult<Lease> {
    let mut builder = CpuBuilder::new().cores(cores);
    if let Some(isolation) = parsed(py, "isolation", isolation)? {
        builder = builder.isolation(isolation);
    }
    if let Some(mode) = parsed(py, "execution_mode", execution_mode)? {
        builder = builder.execution_mode(mode);
    }
    if let Some(width) = execution_width {
        builder = builder.execution_width(width);
    }
    if let Some(partition) = parsed(py, "partition", partition)? {
        builder = builder.partition(partition);
    }
    acquire(py, common, builder, AnyLease::Cpu)
}

/// Leases a network function.
#[pyfunction]
pub(crate) fn net(
    py: Python<'_>,
    common: Common,
    mbps: u32,
    vlan: Option<u16>,
    mac: Option<&str>,
    hand_over: Option<&str>,
) -> PyResult<Lease> {
    let mut builder = NetBuilder::new().mbps(mbps);
    if let Some(vlan) = vlan {
        builder = { builder.vlan(vlan) }.map_err(|error| usage(py, error.to_string()))?;
    }
    if let Some(mac) = parsed(py, "mac", mac)? {
        builder = builder.mac(mac);
    }
    if let Some(hand_over) = parsed(py, "hand_over", hand_over)? {
        builder = builder.hand_over(hand_over);
    }
    acquire(py, common, builder, AnyLease::Net)
}

/// Leases a GPU or part of one.
#[pyfunction]
pub(crate) fn gpu(
    py: Python<'_>,
    common: Common,
    vram: u64,
    exclusivity: Option<&str>,
    execution_mode: Option<&str>,
    compute_slices: Option<u16>,
) -> PyResult<Lease> {
    let mut builder = GpuBuilder::new().min_vram(vram);
    if let Some(class) = parsed(py, "exclusivity", exclusivity)? {
        builder = builder.exclusivity(class);
    }
    if let Some(mode) = parsed(py, "execution_mode", execution_mode)? {
        builder = builder.execution_mode(mode);
    }
    if let Some(slices) = compute_slices {
        builder = builder.compute_slices(slices);
    }
    acquire(py, common, builder, AnyLease::Gpu)
}

fn acquire<K: Kind + 'static>(
    py: Python<'_>,
    common: Common,
    builder: Builder<K>,
    any: fn(fabricbios_client::Lease<K>) -> AnyLease,
) -> PyResult<Lease> {
    let builder = common.apply(py, builder)?;
    let acquired = call(py, None, (), move |()| {
        let builder = match &common.identity {
            Some(path) => builder.identity(&Identity::load(path)?),
            None => builder,
        };
        Ok(Acquired(Some(builder.acquire()?)))
    })?;
    Ok(any(acquired.take()).into())
}

/// A new lease. It is freed if a signal has ended the wait for it, so that nobody takes it.
struct Acquired<K: Kind + 'static>(Option<fabricbios_client::Lease<K>>);

impl<K: Kind> Acquired<K> {
    fn take(mut self) -> fabricbios_client::Lease<K> {
        self.0.take().expect("only this takes it")
    }
}

impl<K: Kind> Drop for Acquired<K> {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            // The thread that drops it may be the main thread. Without a free the lease ends with its term.
            let thread = thread::Builder::new().name("fabricbios-free".to_owned());
            drop(thread.spawn(move || drop(lease.free())));
        }
    }
}

fn duration(py: Python<'_>, name: &str, secs: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(secs).map_err(|error| usage(py, format!("{name} {secs}: {error}")))
}

fn value<T: FromStr<Err: ToString>>(py: Python<'_>, name: &str, text: &str) -> PyResult<T> {
    text.parse()
        .map_err(|error: T::Err| usage(py, format!("{name} {text:?}: {}", error.to_string())))
}

fn parsed<T: FromStr<Err: ToString>>(
    py: Python<'_>,
    name: &str,
    text: Option<&str>,
) -> PyResult<Option<T>> {
    text.map(|text| value(py, name, text)).transpose()
}
