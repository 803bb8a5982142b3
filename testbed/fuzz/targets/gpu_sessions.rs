//! Operations of GPU sessions, which a worker reads from its tenant, and their answers, which a client reads from a node.
#![no_main]

use fabricbios_wire::{
    Header, decode_gpu_answer, decode_gpu_request, encode_gpu_answer, encode_gpu_request,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    if let Ok((header, request)) = decode_gpu_request(frame) {
        let again = encode_gpu_request(header.request_id, header.nonce, &request);
        assert_eq!(again, frame, "there is one form of each operation");
    }
    let Some(Ok(asked)) = frame.first_chunk().map(Header::parse) else {
        return;
    };
    if let Ok(answer) = decode_gpu_answer(&asked, frame) {
        let again = encode_gpu_answer(&asked, &answer);
        let same = decode_gpu_answer(&asked, &again).expect("what was decoded can be encoded");
        assert_eq!(same, answer);
    }
});
