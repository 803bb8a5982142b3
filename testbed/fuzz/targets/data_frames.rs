//! Datagrams of the UDP data plane, before their tag is checked.
#![no_main]

use fabricbios_wire::{DATA_OVERHEAD, DataFrame, HELLO_LEN, HelloReply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    if let Ok(frame) = DataFrame::parse(datagram) {
        assert_eq!(&frame.header.bytes(), frame.header_bytes);
        assert_eq!(DATA_OVERHEAD + frame.payload.len(), datagram.len());
    }
    if let Some(hello) = HelloReply::read(datagram) {
        let again = hello.bytes();
        assert_eq!(HelloReply::read(&again), Some(hello));
        assert!(datagram.len() >= HELLO_LEN);
    }
});
