//! A stream of frames between two processes of a node: the messages and the end do not depend on how the stream is
//! divided, and a message that was received can be sent again and is received as the same.
#![no_main]

use fabricbios_channel::{ChannelKind, Incoming, Outgoing, Problem};
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize};

const KIND: ChannelKind = ChannelKind {
    name: "fuzz",
    frame_bytes_max: 1 << 10,
    passes_descriptors: false,
};

/// As in the messages of the journal, the watchdog and the helper processes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Message {
    Nothing,
    Numbers(u32, u64, u128, i32),
    Bytes(Option<Vec<u8>>),
    Texts(Vec<String>),
    Outcome(Result<u8, String>),
}

/// How a stream ends.
#[derive(Debug, PartialEq)]
enum End {
    Closed,
    CutOff(usize),
    TooLong(usize),
}

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, stream)) = bytes.split_first() else {
        return;
    };
    let at_once = received(stream.chunks(stream.len().max(1)));
    let in_pieces = received(stream.chunks(usize::from(*cut).max(1)));
    assert_eq!(at_once, in_pieces);
    let mut outgoing = Outgoing::new(KIND);
    let messages = at_once.0.iter().flatten();
    // A number may have been longer than it had to be, so the new frame is not longer.
    messages
        .clone()
        .for_each(|message| outgoing.push(message).expect("it came in a frame"));
    let (again, end) = received([outgoing.unsent()].into_iter());
    assert!(again.iter().flatten().eq(messages));
    assert_eq!(end, End::Closed);
});

/// What each frame is (`None`: no message), and how the stream ends.
fn received<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Option<Message>>, End) {
    let (mut incoming, mut found) = (Incoming::new(KIND), Vec::new());
    for piece in pieces {
        incoming.push(piece);
        loop {
            match incoming.next_message() {
                Ok(Some(message)) => found.push(Some(message)),
                Ok(None) => break,
                Err(error) if error.is_garbled() => found.push(None),
                Err(error) => match error.problem {
                    Problem::TooLong { length, .. } => return (found, End::TooLong(length)),
                    other => panic!("{other}"),
                },
            }
        }
    }
    let end = match incoming.end() {
        Ok(()) => End::Closed,
        Err(error) => match error.problem {
            Problem::CutOff(arrived) => End::CutOff(arrived),
            other => panic!("{other}"),
        },
    };
    (found, end)
}
