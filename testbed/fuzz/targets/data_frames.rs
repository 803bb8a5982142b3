//! Datagrams of the UDP data plane and of discovery, before their tag or signature is checked.
#![no_main]

use fabricbios_wire::{
    DATA_OVERHEAD, DataFrame, Discovery, HELLO_LEN, HelloReply, decode_discovery, sealed_discovery,
};
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
    if let Ok(Discovery::Signed(read)) = decode_discovery(datagram) {
        let unsigned = read.told.unsigned(read.certificate);
        let again = unsigned.and_then(|it| sealed_discovery(&it, read.signature));
        assert_eq!(again.as_deref(), Some(datagram));
    }
});
