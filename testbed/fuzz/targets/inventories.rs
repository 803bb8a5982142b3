//! Both forms of inventory.
#![no_main]

use fabricbios_wire::{decode_flat, decode_structured, encode_flat, encode_structured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(flat) = decode_flat(bytes) {
        assert_eq!(encode_flat(&flat).as_deref(), Some(bytes));
    }
    if let Ok(structured) = decode_structured(bytes) {
        let again = encode_structured(&structured).expect("what was decoded can be encoded");
        assert_eq!(decode_structured(&again), Ok(structured));
    }
});
