//! Errors of the SDK as the exceptions of `fabricbios/_errors.py`.

use fabricbios_client::{EndCause, Error, wire::LeaseId};
use pyo3::{
    prelude::*,
    types::{PyDict, PyType},
};

/// The exception for `error`, which is about `lease_id` if it names no lease itself.
pub(crate) fn raised(py: Python<'_>, error: &Error, lease_id: Option<LeaseId>) -> PyErr {
    make(py, error, lease_id).unwrap_or_else(|failed| failed)
}

/// Wrong arguments.
pub(crate) fn usage(py: Python<'_>, why: impl Into<String>) -> PyErr {
    raised(py, &Error::Usage(why.into()), None)
}

/// Gives an exception that nobody can catch to sys.unraisablehook.
#[pyfunction]
pub(crate) fn report(error: Bound<'_, PyAny>, about: &Bound<'_, PyAny>) {
    let py = error.py();
    PyErr::from_value(error).write_unraisable(py, Some(about));
}

fn make(py: Python<'_>, error: &Error, lease_id: Option<LeaseId>) -> PyResult<PyErr> {
    let lease_id = error.lease_id().or(lease_id).map(|id| id.to_string());
    let refusal = error.refusal();
    let fields = PyDict::new(py);
    fields.set_item("code", error.code())?;
    fields.set_item("reason_class", error.refusal_class().name())?;
    fields.set_item("lease_id", lease_id)?;
    fields.set_item("end_cause", error.end_cause().map(EndCause::name))?;
    let renewable = refusal.and_then(|it| it.renewable_at_unix_ms);
    fields.set_item("renewable_at_unix_ms", renewable)?;
    fields.set_item("retry_after_ms", refusal.and_then(|it| it.retry_after_ms))?;
    let classes = py.import("fabricbios._errors")?.getattr("CLASSES")?;
    let class = classes.get_item(error.class().name())?;
    let class = class.cast_into::<PyType>()?;
    Ok(PyErr::from_value(
        class.call((error.to_string(),), Some(&fields))?,
    ))
}
