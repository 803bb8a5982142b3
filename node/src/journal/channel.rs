//! Messages between the daemon and the journal's process, over a socket.
//!
//! A message is its length, four bytes little-endian, and its postcard form. Both ends run the same program
//! (`fabricbios_helper::Program`), so the format has one version.

use std::{
    io::{self, BufReader, BufWriter, ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{JournalCounts, Key, Recovered, Value};

/// Most bytes of a message: a host with many thousand leases. Other records have some hundred bytes, errors some
/// thousand.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 4 << 20;

#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// To the process, first message: open the journal and count this start with this boot id. `None`: replace a
    /// process that has ended.
    Begin(Option<String>),
    /// From the process: a record. To the process: a change that belongs to the next group.
    Record(Key, Option<Value>),
    /// From the process, after the records: the journal is open; the rest of its contents.
    Opened(Recovered),
    /// From the process: why the journal does not open, or why the group is not durable.
    Refused(String),
    /// To the process: the group is complete, commit it.
    Commit,
    /// From the process: the group is durable, as the commit with this number.
    Committed(u64, JournalCounts),
}

pub(super) struct Channel {
    input: BufReader<UnixStream>,
    output: BufWriter<UnixStream>,
}

impl Channel {
    pub(super) fn over(socket: UnixStream) -> io::Result<Self> {
        Ok(Self {
            input: BufReader::new(socket.try_clone()?),
            output: BufWriter::new(socket),
        })
    }

    /// Buffers a message; [`Channel::flush`] sends it.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let bytes = Zeroizing::new(postcard::to_allocvec(message).map_err(io::Error::other)?);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        check(length)?;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&bytes)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// The next message; an error of [`ErrorKind::UnexpectedEof`] if the other end is gone.
    pub(super) fn receive(&mut self) -> io::Result<Message> {
        let mut length = [0; 4];
        self.input.read_exact(&mut length).map_err(|error| {
            let is_end = error.kind() == ErrorKind::UnexpectedEof;
            if is_end {
                io::Error::new(ErrorKind::UnexpectedEof, "its end of the socket is closed")
            } else {
                error
            }
        })?;
        let length = u32::from_le_bytes(length);
        check(length)?;
        let mut bytes = Zeroizing::new(Vec::new());
        self.input
            .by_ref()
            .take(length.into())
            .read_to_end(&mut bytes)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }

    /// Closes the socket in both directions.
    pub(super) fn end(&self) {
        // The other end may be closed already.
        self.output.get_ref().shutdown(Shutdown::Both).ok();
    }
}

fn check(length: u32) -> io::Result<()> {
    if length <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let why = format!("a message of {length} bytes; {MESSAGE_BYTES_MAX} are allowed");
    Err(io::Error::new(ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, Channel) {
        let (ours, its) = UnixStream::pair().unwrap();
        (ours, Channel::over(its).unwrap())
    }

    #[test]
    fn what_is_said_is_heard_and_the_end_too() {
        let (ours, mut its) = pair();
        let mut ours = Channel::over(ours).unwrap();
        let value = Zeroizing::new(vec![7; 300]);
        ours.send(&Message::Record(Key::Pool(9), Some(value.clone())))
            .unwrap();
        ours.flush().unwrap();
        drop(ours);
        let received = its.receive().unwrap();
        assert!(matches!(received, Message::Record(Key::Pool(9), Some(it)) if it == value));
        let over = its.receive().map(drop).unwrap_err();
        assert_eq!(over.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_makes_no_room_for_more_than_comes() {
        let too_much = (MESSAGE_BYTES_MAX + 1).to_le_bytes();
        // The second length is cut off; the third message cannot be decoded.
        let lengths = [
            too_much,
            MESSAGE_BYTES_MAX.to_le_bytes(),
            1_u32.to_le_bytes(),
        ];
        for length in lengths {
            let (mut ours, mut its) = pair();
            ours.write_all(&length).unwrap();
            ours.write_all(&[0xFF]).unwrap();
            drop(ours);
            its.receive().map(drop).unwrap_err();
        }
        let mut its = pair().1;
        let long = Message::Refused("x".repeat(MESSAGE_BYTES_MAX as usize));
        its.send(&long).unwrap_err();
    }
}
