//! Answers that a client reads from an untrusted node. The request of each answer is taken from the answer's own
//! header.
#![no_main]

use fabricbios_wire::{Header, decode_answer, encode_answer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Some(Ok(asked)) = frame.first_chunk().map(Header::parse) else {
        return;
    };
    if let Ok(answer) = decode_answer(&asked, frame) {
        let again = encode_answer(&asked, &answer);
        let same = decode_answer(&asked, &again).expect("what was decoded can be encoded");
        assert_eq!(same, answer);
    }
});
