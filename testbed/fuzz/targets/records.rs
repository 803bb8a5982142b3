//! Records of leases and fences, as a damaged journal might hold them.
#![no_main]

use fabricbios_lease::{FenceRecord, LeaseRecord};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|bytes: &[u8]| {
    check::<LeaseRecord>(bytes);
    check::<FenceRecord>(bytes);
});

/// A decoded record is encoded and decoded again to the same record.
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(record) = postcard::from_bytes::<T>(bytes) {
        let again = postcard::to_allocvec(&record).expect("a record can be written");
        assert_eq!(postcard::from_bytes::<T>(&again).as_ref(), Ok(&record));
    }
}
