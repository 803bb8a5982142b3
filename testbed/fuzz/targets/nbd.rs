//! A stream of NBD requests: the reader stores no more bytes than have arrived, whatever lengths the requests
//! state, and the result does not depend on how the stream is divided.
#![no_main]

#[allow(dead_code, reason = "replies are not what is looked at")]
#[path = "../../../client/attach/src/nbd/protocol.rs"]
mod protocol;

use libfuzzer_sys::fuzz_target;
use protocol::{Command, Decoder, LENGTH_MAX, NbdRequest};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, stream)) = bytes.split_first() else {
        return;
    };
    let at_once = decode(stream.chunks(stream.len().max(1)));
    let in_pieces = decode(stream.chunks(usize::from(*cut).max(1)));
    assert_eq!(at_once, in_pieces);
    let carried = |request: &NbdRequest| match &request.command {
        Command::Write(from) => from.len(),
        Command::Read(length) => {
            assert!(*length <= LENGTH_MAX);
            0
        }
        _ => 0,
    };
    let carried: usize = at_once.0.iter().map(carried).sum();
    assert!(carried <= stream.len());
});

/// All requests before the first invalid one, and whether there is an invalid one.
fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<NbdRequest>, bool) {
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(request)) => found.push(request),
                Ok(None) => break,
                Err(_not_nbd) => return (found, true),
            }
        }
    }
    (found, false)
}
