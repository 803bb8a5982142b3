//! Events: critical XID errors, one for each change of the knob.

use std::{
    collections::BTreeMap,
    ffi::{c_uint, c_ulonglong},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventTypeXidCriticalError,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT, nvmlReturn_t,
};
use stand_in_device::{Change, Knob, Out};

use crate::{
    calls::{NOT_OF_A_PARTITION, code},
    handle::{self, Handle},
    library::{self, Failure},
};

/// `nvmlEventSet_t`. It is a pointer, which C passes in the same register as this type.
type SetHandle = usize;

/// How often a wait looks at the knob.
const LOOK: Duration = Duration::from_millis(10);

/// The knob as each set has last seen it; `None` if the set waits for nothing.
static SETS: Mutex<BTreeMap<SetHandle, Option<Change>>> = Mutex::new(BTreeMap::new());

fn sets() -> MutexGuard<'static, BTreeMap<SetHandle, Option<Change>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<SetHandle>) -> nvmlReturn_t {
    code(library::device().and_then(|_| {
        let mut sets = sets();
        let id = sets.last_key_value().map_or(0xE00, |(last, _)| last + 1);
        sets.insert(id, None);
        Ok(set.put(id)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: SetHandle) -> nvmlReturn_t {
    code(library::device().and_then(|_| match sets().remove(&set) {
        Some(_) => Ok(()),
        None => Err(Failure(INVALID_ARGUMENT)),
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: Handle,
    types: Out<c_ulonglong>,
) -> nvmlReturn_t {
    let supported = c_ulonglong::from(nvmlEventTypeXidCriticalError);
    code(handle::working(device).and_then(|_| Ok(types.put(supported)?)))
}

/// An error from before this call is not reported.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: Handle,
    types: c_ulonglong,
    set: SetHandle,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|(device, _)| {
        if types & !c_ulonglong::from(nvmlEventTypeXidCriticalError) != 0 {
            return Err(Failure(NOT_SUPPORTED));
        }
        let mut sets = sets();
        let seen = sets.get_mut(&set).ok_or(Failure(INVALID_ARGUMENT))?;
        *seen = Some(device.knobs().change(Knob::Xid));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    set: SetHandle,
    data: Out<nvmlEventData_t>,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    code(wait(set, &data, Duration::from_millis(timeout_ms.into())))
}

fn wait(set: SetHandle, data: &Out<nvmlEventData_t>, patience: Duration) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let device = library::device()?;
        handle::present(&device)?;
        let now = device.knobs().change(Knob::Xid);
        let mut sets = sets();
        let seen = sets.get_mut(&set).ok_or(Failure(INVALID_ARGUMENT))?;
        if seen.as_ref().is_some_and(|seen| *seen != now) {
            *seen = Some(now);
            let xid = device.knobs().number(Knob::Xid);
            // A knob that is off is no error.
            if xid != 0 {
                return Ok(data.put(event(xid))?);
            }
        }
        drop(sets);
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(Failure(TIMEOUT));
        }
        thread::sleep(left.min(LOOK));
    }
}

fn event(xid: u64) -> nvmlEventData_t {
    let whole = stand_in_device::Identity::whole(stand_in_device::Vendor::Nvidia);
    nvmlEventData_t {
        device: ptr::without_provenance_mut(handle::of(&whole)),
        eventType: nvmlEventTypeXidCriticalError.into(),
        eventData: xid,
        gpuInstanceId: NOT_OF_A_PARTITION,
        computeInstanceId: NOT_OF_A_PARTITION,
    }
}
