//! The frames of Mooncake's handshake, one each way on a connection: `u64 length` (little-endian, of the rest), `u8 type`,
//! JSON. Source: `readString` and `writeString` in mooncake-transfer-engine/include/common.h.

use std::io::{self, Read};

use serde::Serialize;

/// Largest length. A stock client reads no longer messages either.
const LENGTH_MAX: u64 = 1 << 20;

/// The type of a message and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Queue pairs that are to be connected.
    Connection = 0,
    /// The descriptor of a segment.
    Metadata = 1,
    /// A text for the program at the other end.
    Notify = 2,
    /// Whether somebody answers.
    Probe = 3,
}

/// Reads one frame. The error says what is wrong with it.
pub(super) fn read(from: &mut impl Read) -> Result<(Kind, Vec<u8>), String> {
    let mut length = [0; 8];
    fill(from, &mut length, "the length of a message")?;
    let length = u64::from_le_bytes(length);
    if !(1..=LENGTH_MAX).contains(&length) {
        return Err(format!(
            "this is no message of Mooncake: its length would be {length}, and 1 to {LENGTH_MAX} are possible"
        ));
    }
    let mut kind = [0];
    fill(from, &mut kind, "the type of a message")?;
    let kind = match kind[0] {
        0 => Kind::Connection,
        1 => Kind::Metadata,
        2 => Kind::Notify,
        3 => Kind::Probe,
        other => {
            return Err(format!(
                "a message has type {other}, and 0 to 3 are known: is the client older than 0.3, or later than what \
                 this fabricctl was tried with?"
            ));
        }
    };
    let mut json = Vec::new();
    let rest = length - 1;
    let read = from.take(rest).read_to_end(&mut json);
    read.map_err(|error| broken("a message", &error))?;
    match u64::try_from(json.len()) == Ok(rest) {
        true => Ok((kind, json)),
        false => Err(format!(
            "the connection was closed after {} of {rest} bytes of a message",
            json.len()
        )),
    }
}

/// The bytes of one frame.
pub(super) fn frame(kind: Kind, message: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    json.push(b'\n');
    let mut bytes = (json.len() as u64 + 1).to_le_bytes().to_vec();
    bytes.push(kind as u8);
    bytes.append(&mut json);
    Ok(bytes)
}

fn fill(from: &mut impl Read, buffer: &mut [u8], what: &str) -> Result<(), String> {
    from.read_exact(buffer)
        .map_err(|error| broken(what, &error))
}

fn broken(what: &str, error: &io::Error) -> String {
    use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
    match error.kind() {
        UnexpectedEof => format!("the connection was closed before {what}"),
        WouldBlock | TimedOut => format!("{what} did not come in time"),
        _ => format!("{what} did not come: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let bytes = frame(Kind::Metadata, &[1, 2]).unwrap();
        assert_eq!(bytes, b"\x07\0\0\0\0\0\0\0\x01[1,2]\n");
        let read = read(&mut &bytes[..]).unwrap();
        assert_eq!(read, (Kind::Metadata, b"[1,2]\n".to_vec()));
    }

    #[test]
    fn bytes_of_others_have_an_error_that_says_what_they_are_not() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "closed before the length"),
            (b"\x07\0\0", "closed before the length"),
            (b"\0\0\0\0\0\0\0\0", "would be 0,"),
            (b"GET / HTTP/1.1\r\n\r\n", "no message of Mooncake"),
            (b"\x80\x96\x98\0\0\0\0\0\x01{}", "would be 10000000,"),
            (b"\0\0\0\0\0\0\0\x80\x01{}", "would be 9223372036854775808,"),
            (b"\x02\0\0\0\0\0\0\0{}", "type 123"),
            (b"\x09\0\0\0\0\0\0\0\x01{}", "after 2 of 8 bytes"),
        ];
        for (bytes, part) in cases {
            let error = read(&mut &bytes[..]).unwrap_err();
            assert!(error.contains(part), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        let good = frame(Kind::Connection, &"text").unwrap();
        for length in 0..good.len() {
            read(&mut &good[..length]).unwrap_err();
        }
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = byte;
                read(&mut &bytes[..]).ok();
            }
        }
    }
}
