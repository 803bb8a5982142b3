//! Requests that a node reads from a stream.
#![no_main]

use fabricbios_wire::{decode_request, encode_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Ok((header, request)) = decode_request(frame) else {
        return;
    };
    // A decoded request is encoded and decoded again to the same request.
    let again = encode_request(header.request_id, header.nonce, &request);
    let (_, same) = decode_request(&again).expect("what was decoded can be encoded");
    assert_eq!(same, request);
});
