//! One stream: bytes in, a request or the bytes of a refusal out. Pure.
//!
//! A frame is refused as soon as it is hopeless, so a peer never makes the node keep more than one
//! frame of the largest size.

use std::time::Duration;

use fabricbios_wire::{
    Answer, HEADER_LEN, Header, LeaseError, MAX_PAYLOAD, Refusal, RefusalClass, Rejected, Reply,
    Request, decode_request, encode_answer,
};

/// A frame that is being received.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    header: Option<Header>,
}

/// What a stream said.
#[derive(Debug)]
pub(crate) enum Heard {
    /// For the table.
    Ask(Header, Request),
    /// Answered already: send this.
    Answer(Vec<u8>),
}

impl Frame {
    /// How many bytes to take at most: what is missing, and one more, which would be too many.
    pub(crate) fn wants(&self) -> usize {
        match &self.header {
            None => HEADER_LEN - self.bytes.len(),
            Some(header) => length(header) + 1 - self.bytes.len(),
        }
    }

    /// Takes bytes; `Some` when there is no point in reading on.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.bytes.extend_from_slice(bytes);
        if self.header.is_none() {
            self.read_header().err().map(|rejected| refuse(&rejected))
        } else {
            self.check_length()
        }
    }

    /// The peer has finished.
    pub(crate) fn end(self) -> Heard {
        match decode_request(&self.bytes) {
            Ok((header, Request::Ping(number))) => {
                Heard::Answer(encode_answer(&header, &Ok(Reply::Pong(number))))
            }
            Ok((header, request)) => Heard::Ask(header, request),
            Err(rejected) => Heard::Answer(refuse(&rejected)),
        }
    }

    /// The peer has not finished in time.
    pub(crate) fn late(&self, limit: Duration) -> Vec<u8> {
        let message = format!("the request was not complete after {limit:?}; send it again");
        let refusal = Refusal::new(LeaseError::Malformed, RefusalClass::Transient, message);
        answer(self.header.as_ref(), Err(refusal))
    }

    fn read_header(&mut self) -> Result<(), Rejected> {
        if let Some(bytes) = self.bytes.first_chunk::<HEADER_LEN>() {
            self.header = Some(Header::parse(bytes)?);
        }
        Ok(())
    }

    fn check_length(&self) -> Option<Vec<u8>> {
        let header = self.header.as_ref()?;
        (self.bytes.len() > length(header)).then(|| {
            let said = header.payload_len;
            let message = format!("bytes after the end of a frame with {said} bytes of payload");
            let refusal = Refusal::new(LeaseError::Malformed, RefusalClass::Permanent, message);
            answer(Some(header), Err(refusal))
        })
    }
}

/// A header that parsed says at most `MAX_PAYLOAD`.
fn length(header: &Header) -> usize {
    HEADER_LEN + usize::try_from(header.payload_len).unwrap_or(MAX_PAYLOAD)
}

fn refuse(rejected: &Rejected) -> Vec<u8> {
    answer(rejected.header.as_ref(), Err(rejected.refusal()))
}

/// Bytes without a readable header still get a readable answer, to nobody's number.
fn answer(to: Option<&Header>, answer: Answer) -> Vec<u8> {
    let nobody = Header {
        flags: 0,
        msg_type: 0,
        request_id: 0,
        nonce: 0,
        payload_len: 0,
    };
    encode_answer(to.unwrap_or(&nobody), &answer)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
