//! The health that NVML reports of a device. [`super::xid`] has the errors that NVML reports only when they happen.

use std::ffi::c_uint;

use nvml_wrapper::{
    Device as Handle, Nvml,
    enum_wrappers::device::{EccCounter, MemoryError},
    enums::device::SampleValue,
    error::{NvmlError, nvml_sym, nvml_try},
    structs::device::FieldId,
    sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
};

use crate::{Health, management::worst};

/// The health of a device. For a partition, the health of its device counts too.
pub(super) fn of(nvml: &Nvml, handle: &Handle<'_>) -> Health {
    match handle.mig_is_mig_device_handle() {
        Ok(true) => match handle.mig_parent_device() {
            Ok(parent) => worst([of_whole(nvml, &parent), memory(handle)]),
            Err(error) => of_error(&error).unwrap_or_default(),
        },
        _ => of_whole(nvml, handle),
    }
}

/// The health of the device with this UUID.
pub(super) fn of_uuid(nvml: &Nvml, uuid: &str) -> Health {
    match nvml.device_by_uuid(uuid) {
        Ok(handle) => of(nvml, &handle),
        // A partition that is made anew may have the same UUID.
        Err(NvmlError::NotFound) => Health::Silent("NVML does not know it any more".into()),
        Err(error) => of_error(&error).unwrap_or_default(),
    }
}

/// The health that an error implies. `None`: the error says nothing about health, such as that the device lacks a
/// feature.
pub(super) fn of_error(error: &NvmlError) -> Option<Health> {
    match error {
        NvmlError::GpuLost => Some(Health::Failed(
            "it has fallen off the bus, or does not answer: restart the machine".into(),
        )),
        NvmlError::ResetRequired => Some(Health::Failed("it needs a reset".into())),
        NvmlError::NotSupported
        | NvmlError::NotFound
        | NvmlError::NoData
        | NvmlError::NoPermission
        | NvmlError::InvalidArg
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(_) => None,
        other => Some(Health::Degraded(format!(
            "NVML cannot tell its state: {other}"
        ))),
    }
}

fn of_whole(nvml: &Nvml, handle: &Handle<'_>) -> Health {
    worst([
        memory(handle),
        ecc(handle),
        remapped_rows(nvml, handle),
        retired_pages(handle),
        recovery_action(handle),
    ])
}

fn told(result: Result<Health, NvmlError>) -> Health {
    result.unwrap_or_else(|error| of_error(&error).unwrap_or_default())
}

/// Every device can report its memory, so a failure here is a fault.
fn memory(handle: &Handle<'_>) -> Health {
    told(handle.memory_info().map(|_| Health::Good))
}

fn ecc(handle: &Handle<'_>) -> Health {
    let counted = handle.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    told(counted.map(|count| match count {
        0 => Health::Good,
        count => Health::Degraded(format!(
            "{count} memory errors that ECC could not correct since the driver was loaded or the device reset"
        )),
    }))
}

/// Devices from Ampere on replace defective rows of memory by spare rows.
fn remapped_rows(nvml: &Nvml, handle: &Handle<'_>) -> Health {
    let [
        mut corrected,
        mut uncorrected,
        mut is_pending,
        mut has_failed,
    ]: [c_uint; 4] = [0; 4];
    let rows = nvml_sym(nvml.lib().nvmlDeviceGetRemappedRows.as_ref()).and_then(|call| {
        // SAFETY: the handle is of this library, and the variables have room for the results.
        nvml_try(unsafe {
            call(
                handle.handle(),
                &raw mut corrected,
                &raw mut uncorrected,
                &raw mut is_pending,
                &raw mut has_failed,
            )
        })
    });
    told(rows.map(|()| match (has_failed, is_pending) {
        (0, 0) => Health::Good,
        (0, _) => Health::Degraded("a reset is due: it replaces bad rows of memory".into()),
        _ => Health::Failed("no spare rows of memory are left for bad ones: replace it".into()),
    }))
}

/// Devices before Ampere retire defective pages of memory.
fn retired_pages(handle: &Handle<'_>) -> Health {
    told(handle.are_pages_pending_retired().map(|is| match is {
        false => Health::Good,
        true => Health::Degraded("a reset is due: it takes bad pages of memory out of use".into()),
    }))
}

/// The recovery action that the driver itself demands (since R550).
fn recovery_action(handle: &Handle<'_>) -> Health {
    let field = FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    let value = handle.field_values_for(&[field]).and_then(|values| {
        let first = values.into_iter().next().unwrap_or(Err(NvmlError::NoData));
        first?.value
    });
    told(value.map(|value| match value {
        SampleValue::U32(action) => of_action(action.into()),
        SampleValue::U64(action) => of_action(action),
        _ => Health::Good,
    }))
}

/// `nvmlDeviceGpuRecoveryAction_t`.
fn of_action(action: u64) -> Health {
    let degraded = |why: &str| Health::Degraded(format!("the driver says: {why}"));
    let failed = |why: &str| Health::Failed(format!("the driver says: {why}"));
    match action {
        0 => Health::Good,
        1 => failed("it needs a reset"),
        2 | 7 => failed("the machine needs a restart"),
        3 => degraded("programs that use it with other devices have to end"),
        4 => degraded("it works with less; end its programs, then reset it"),
        5 => degraded("its memory domain with other machines has to be set up again"),
        6 => failed("its place on the PCI bus needs a reset"),
        other => degraded(&format!(
            "recovery action {other}, which this program does not know"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_has_failed_and_one_that_lacks_something_has_not() {
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired] {
            assert!(
                matches!(of_error(&error), Some(Health::Failed(_))),
                "{error}"
            );
        }
        for error in [
            NvmlError::NotSupported,
            NvmlError::FailedToLoadSymbol(String::new()),
        ] {
            assert_eq!(of_error(&error), None);
        }
        assert!(matches!(
            of_error(&NvmlError::Unknown),
            Some(Health::Degraded(_))
        ));
    }

    #[test]
    fn the_drivers_advice_counts() {
        assert_eq!(of_action(0), Health::Good);
        assert_eq!(
            of_action(1),
            Health::Failed("the driver says: it needs a reset".into())
        );
        assert!(matches!(of_action(2), Health::Failed(_)));
        for action in [6, 7] {
            assert!(matches!(of_action(action), Health::Failed(_)), "{action}");
        }
        for action in [3, 4, 5, 8] {
            assert!(matches!(of_action(action), Health::Degraded(_)), "{action}");
        }
    }
}
