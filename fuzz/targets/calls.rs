//! Messages between a store or path and the process that gives it orders, in both directions.
#![no_main]

use fabricbios_contract::{
    Revoked,
    remote::{Call, Told, decode, encode},
};
use fabricbios_lease::{BindError, Condition, Proof, StepError};
use fabricbios_wire::{Binding, LeaseId};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|frame: &[u8]| {
    let Some((kind, body)) = frame.split_first() else {
        return;
    };
    match kind % 8 {
        0 => again::<Call>(body),
        1 => again::<Result<Told, BindError>>(body),
        2 => again::<Result<Binding, BindError>>(body),
        3 => again::<Result<Binding, StepError>>(body),
        4 => again::<Result<Revoked, StepError>>(body),
        5 => again::<Result<Proof, StepError>>(body),
        6 => again::<Result<Vec<LeaseId>, StepError>>(body),
        _ => again::<Condition>(body),
    }
});

/// A decoded value is encoded and decoded again to the same value.
fn again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &[u8]) {
    if let Ok(value) = decode::<T>(body) {
        let written = encode(&value).expect("what was decoded can be encoded");
        assert_eq!(decode::<T>(&written).expect("it was just encoded"), value);
    }
}
