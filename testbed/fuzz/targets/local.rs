//! Messages at the local socket: a request of any user of the machine, and the answer of any process that serves the
//! socket.
#![no_main]

use fabricbios_local::{REQUEST_BYTES_MAX, Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::decode(bytes) {
        assert!(bytes.len() <= REQUEST_BYTES_MAX);
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    if let Ok(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }
});
