//! The first frame of a stream: takes bytes and returns a request, or the bytes of an answer. Pure.
//!
//! A frame is refused as soon as it cannot become valid, so a peer never makes the node keep more than one frame of the
//! largest size.

use std::time::Duration;

use fabricbios_wire::{
    Answer, GpuMessageType, GpuRequest, HEADER_LEN, Header, LeaseError, MAX_PAYLOAD, Refusal,
    RefusalClass, Rejected, Reply, Request, decode_gpu_request, decode_request, encode_answer,
};

use crate::gpu_stream::{FirstFrame, SessionOpen};

/// A frame that is being received.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    header: Option<Header>,
}

/// The result of a received frame.
#[derive(Debug)]
pub(crate) enum Received {
    /// A request for the daemon.
    Request(Header, Request),
    /// An answer to send: a PING or an invalid frame.
    Answer(Vec<u8>),
    /// The stream leads to a session: the bytes after this frame are for its worker.
    Session(FirstFrame),
}

impl Frame {
    /// Most bytes to read next: the missing bytes. For a request also one more, to detect a frame that is too long.
    pub(crate) fn wants(&self) -> usize {
        match &self.header {
            None => HEADER_LEN - self.bytes.len(),
            Some(header) => {
                let more = usize::from(of_session(header).is_none());
                length(header) + more - self.bytes.len()
            }
        }
    }

    /// Takes bytes. `Some`: the frame needs no more bytes, because it is invalid, or because it is complete and leads
    /// to a session.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<Received> {
        self.bytes.extend_from_slice(bytes);
        if self.header.is_none()
            && let Err(rejected) = self.read_header()
        {
            return Some(Received::Answer(refuse(&rejected)));
        }
        let header = self.header.as_ref()?;
        match of_session(header) {
            None => self.check_length(header),
            Some(it) if it != GpuMessageType::SessionOpen && header.flags == 0 => {
                Some(open_first(header))
            }
            Some(_) if self.bytes.len() < length(header) => None,
            Some(_) => Some(self.first_of_session()),
        }
    }

    /// The result after the peer has finished the stream.
    pub(crate) fn end(self) -> Received {
        match decode_request(&self.bytes) {
            Ok((header, Request::Ping(number))) => {
                Received::Answer(encode_answer(&header, &Ok(Reply::Pong(number))))
            }
            Ok((header, request)) => Received::Request(header, request),
            Err(rejected) => Received::Answer(refuse(&rejected)),
        }
    }

    /// The answer to a peer that has not finished in time.
    pub(crate) fn timed_out(&self, limit: Duration) -> Vec<u8> {
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

    fn check_length(&self, header: &Header) -> Option<Received> {
        (self.bytes.len() > length(header)).then(|| {
            let said = header.payload_len;
            let message = format!("bytes after the end of a frame with {said} bytes of payload");
            let refusal = Refusal::new(LeaseError::Malformed, RefusalClass::Permanent, message);
            Received::Answer(answer(Some(header), Err(refusal)))
        })
    }

    fn first_of_session(&self) -> Received {
        match decode_gpu_request(&self.bytes) {
            Ok((header, GpuRequest::Open { lease_id, session })) => Received::Session(FirstFrame {
                header,
                open: SessionOpen { lease_id, session },
                bytes: self.bytes.clone(),
            }),
            Ok((header, _)) => open_first(&header),
            Err(rejected) => Received::Answer(refuse(&rejected)),
        }
    }
}

/// The operation of a session, if the header is of one.
fn of_session(header: &Header) -> Option<GpuMessageType> {
    GpuMessageType::from_code(header.msg_type)
}

fn open_first(header: &Header) -> Received {
    let message = format!(
        "the first frame of this stream is operation 0x{:04x} of a session: open a session first, with GPU_SESSION_OPEN \
         (0x0601)",
        header.msg_type
    );
    let refusal = Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, message);
    Received::Answer(answer(Some(header), Err(refusal)))
}

/// Bytes of the whole frame; a parsed header has at most `MAX_PAYLOAD`.
fn length(header: &Header) -> usize {
    HEADER_LEN + usize::try_from(header.payload_len).unwrap_or(MAX_PAYLOAD)
}

fn refuse(rejected: &Rejected) -> Vec<u8> {
    answer(rejected.header.as_ref(), Err(rejected.refusal()))
}

/// Bytes without a valid header get an answer too, with request number 0.
fn answer(to: Option<&Header>, answer: Answer) -> Vec<u8> {
    let zero_header = Header {
        flags: 0,
        msg_type: 0,
        request_id: 0,
        nonce: 0,
        payload_len: 0,
    };
    encode_answer(to.unwrap_or(&zero_header), &answer)
}

#[cfg(test)]
mod tests;
