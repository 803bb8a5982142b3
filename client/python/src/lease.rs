//! A lease, of any kind, as a Python object.

use std::{mem::ManuallyDrop, sync::Arc};

use fabricbios_client::{
    BlockLease, CpuLease, DataTransport, EndCause, Error, GpuLease, Health, MemLease, NetLease,
    json::{Json, Object},
    lease_json,
    wire::LeaseId,
};
use pyo3::{IntoPyObjectExt, prelude::*, types::PyDict};

use crate::{
    buffer::Held,
    calls::{call, forked},
    errors,
    process::is_forked,
};

/// A lease of one of the kinds.
pub(crate) enum AnyLease {
    Mem(MemLease),
    Block(BlockLease),
    Cpu(CpuLease),
    Net(NetLease),
    Gpu(GpuLease),
}

/// The same expression for each kind.
macro_rules! each {
    ($any:expr, $lease:ident => $call:expr) => {
        match $any {
            AnyLease::Mem($lease) => $call,
            AnyLease::Block($lease) => $call,
            AnyLease::Cpu($lease) => $call,
            AnyLease::Net($lease) => $call,
            AnyLease::Gpu($lease) => $call,
        }
    };
}

/// A lease. Threads may share it.
#[pyclass(frozen, module = "fabricbios._native")]
pub(crate) struct Lease {
    /// Not dropped in a process made by fork(2): the threads that this would wake are not there.
    lease: ManuallyDrop<Arc<AnyLease>>,
    lease_id: LeaseId,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !is_forked() {
            // SAFETY: this is the only place that drops it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.lease) };
        }
    }
}

impl From<AnyLease> for Lease {
    fn from(lease: AnyLease) -> Self {
        let lease_id = each!(&lease, it => it.lease_id());
        let lease = ManuallyDrop::new(Arc::new(lease));
        Self { lease, lease_id }
    }
}

impl Lease {
    /// The lease, for calls that do not wait. A lock of it may be held for ever in a process made by fork(2).
    fn here(&self, py: Python<'_>) -> PyResult<&AnyLease> {
        match is_forked() {
            true => Err(forked(py, Some(self.lease_id))),
            false => Ok(&self.lease),
        }
    }

    /// Makes one call of the SDK.
    fn call<B: Send + 'static, T: Send + 'static>(
        &self,
        py: Python<'_>,
        buffer: B,
        work: impl FnOnce(&AnyLease, &mut B) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let lease = Arc::clone(&self.lease);
        call(py, Some(self.lease_id), buffer, move |buffer| {
            work(&lease, buffer)
        })
    }
}

fn mem(lease: &AnyLease) -> Result<&MemLease, Error> {
    match lease {
        AnyLease::Mem(lease) => Ok(lease),
        _ => Err(Error::Usage("this is no lease of memory".to_owned())),
    }
}

fn block(lease: &AnyLease) -> Result<&BlockLease, Error> {
    match lease {
        AnyLease::Block(lease) => Ok(lease),
        _ => Err(Error::Usage("this is no lease of blocks".to_owned())),
    }
}

#[pymethods]
impl Lease {
    #[getter]
    fn lease_id(&self) -> String {
        self.lease_id.to_string()
    }

    /// The address of the node.
    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<String> {
        Ok(each!(self.here(py)?, it => it.node().address().to_owned()))
    }

    /// The id of the node, as 64 hexadecimal digits.
    #[getter]
    fn node_id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let id = each!(self.here(py)?, it => it.node_id());
        Ok(id.map(|id| id.to_string()))
    }

    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(each!(self.here(py)?, it => it.info().capacity))
    }

    /// Seconds of Unix time, by the clock of the node.
    #[getter]
    fn expires_at(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(each!(self.here(py)?, it => it.expires_at_unix_secs()))
    }

    /// Seconds.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(each!(self.here(py)?, it => it.remaining()).as_secs_f64())
    }

    /// The state of the renewals, and the error if they do not go well.
    fn health(&self, py: Python<'_>) -> PyResult<(&'static str, Option<PyErr>)> {
        let (name, error) = match each!(self.here(py)?, it => it.health()) {
            Health::Good => return Ok(("good", None)),
            Health::Retrying(error) => ("retrying", error),
            Health::Lost(error) => ("lost", error),
        };
        let raised = errors::raised(py, &error, Some(self.lease_id));
        Ok((name, Some(raised)))
    }

    /// The transport of the last transfer.
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(match self.here(py)? {
            AnyLease::Mem(lease) => lease.transport().map(DataTransport::name),
            _ => None,
        })
    }

    /// The last answer, as `fabricctl --json` prints it.
    fn info(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let info = each!(self.here(py)?, it => it.info());
        object(py, &lease_json(&info))
    }

    fn renew(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, (), |lease, ()| each!(lease, it => it.renew().map(drop)))
    }

    fn query(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, (), |lease, ()| each!(lease, it => it.query().map(drop)))
    }

    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.call(
            py,
            (),
            |lease, ()| each!(lease, it => it.free_shared().map(drop)),
        )
    }

    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.call(py, Held::writable(buffer)?, move |lease, into| {
            mem(lease)?.read(offset, into.bytes_mut())
        })
    }

    fn write(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.call(py, Held::readable(buffer)?, move |lease, from| {
            mem(lease)?.write(offset, from.bytes())
        })
    }

    /// Number of blocks, and bytes of one.
    fn geometry(&self, py: Python<'_>) -> PyResult<(u64, u32)> {
        self.call(py, (), |lease, ()| {
            let geometry = block(lease)?.geometry()?;
            Ok((geometry.blocks, geometry.block_bytes))
        })
    }

    fn read_blocks(&self, py: Python<'_>, first: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.call(py, Held::writable(buffer)?, move |lease, into| {
            block(lease)?.read_blocks(first, into.bytes_mut())
        })
    }

    fn write_blocks(&self, py: Python<'_>, first: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.call(py, Held::readable(buffer)?, move |lease, from| {
            block(lease)?.write_blocks(first, from.bytes())
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, (), |lease, ()| block(lease)?.flush())
    }

    fn end_watch(&self, py: Python<'_>) -> PyResult<EndWatch> {
        Ok(EndWatch {
            watch: each!(self.here(py)?, it => it.end_watch()),
            lease_id: self.lease_id,
        })
    }

    fn is_forked(&self) -> bool {
        is_forked()
    }
}

fn object(py: Python<'_>, object: &Object<'_>) -> PyResult<Py<PyAny>> {
    let dict = PyDict::new(py);
    for (name, its) in object.fields() {
        dict.set_item(name, value(py, its)?)?;
    }
    Ok(dict.into_any().unbind())
}

fn value(py: Python<'_>, json: &Json<'_>) -> PyResult<Py<PyAny>> {
    Ok(match json {
        Json::Absent | Json::Null => py.None(),
        Json::Bool(it) => it.into_py_any(py)?,
        Json::Number(it) => it.into_py_any(py)?,
        Json::Text(it) => it.as_ref().into_py_any(py)?,
        Json::Secret(it) => it.reveal().into_py_any(py)?,
        Json::List(list) => {
            let values = list.iter().map(|it| value(py, it));
            values.collect::<PyResult<Vec<_>>>()?.into_py_any(py)?
        }
        Json::Object(it) => object(py, it)?,
    })
}

/// Waits for the end of a lease.
#[pyclass(frozen, module = "fabricbios._native")]
pub(crate) struct EndWatch {
    watch: fabricbios_client::EndWatch,
    lease_id: LeaseId,
}

#[pymethods]
impl EndWatch {
    /// Waits for the end; returns the cause, and the error that later calls of the lease raise.
    fn wait(&self, py: Python<'_>) -> PyResult<(&'static str, PyErr)> {
        let watch = self.watch.clone();
        let error = call(py, Some(self.lease_id), (), move |()| Ok(watch.wait()))?;
        let cause = match (&error, error.end_cause()) {
            (_, Some(cause)) => cause.name(),
            (Error::InGrace { .. }, None) => EndCause::Expired.name(),
            (_, None) => "unknown",
        };
        Ok((cause, errors::raised(py, &error, Some(self.lease_id))))
    }
}
