//! What the daemon and the journal's process say to each other, over a socket.
//!
//! Each word is its length, four bytes little-endian, and its postcard form. Both ends are one program
//! (`fabricbios_helper::Program`), so there is one version of this.

use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{JournalCounts, Key, Recovered, Value};

/// Longest word: that of a host with many thousand leases. Other records have some hundred bytes, a reason some thousand.
pub(crate) const WORD_BYTES_MAX: u32 = 4 << 20;

#[derive(Serialize, Deserialize)]
pub(super) enum Word {
    /// To the process, first: open the journal, and count this start of the node with that boot id; without one, go on in
    /// the place of a process that has ended.
    Begin(Option<String>),
    /// From the process: a record. To it: part of the next group; without a value the record goes.
    Record(Key, Option<Value>),
    /// From the process, after the records: it is open, and this is the rest of what was in it.
    Opened(Recovered),
    /// From the process: why the journal does not open, before its end, or why the group is not on the disk.
    Refused(String),
    /// To the process: that was the group, write it.
    Commit,
    /// From the process: the group is on the disk, as the commit of that number.
    Committed(u64, JournalCounts),
}

pub(super) struct Talk {
    input: BufReader<UnixStream>,
    output: BufWriter<UnixStream>,
}

impl Talk {
    pub(super) fn over(socket: UnixStream) -> io::Result<Self> {
        Ok(Self {
            input: BufReader::new(socket.try_clone()?),
            output: BufWriter::new(socket),
        })
    }

    /// Comes to the other end at the latest with [`Talk::flush`].
    pub(super) fn say(&mut self, word: &Word) -> io::Result<()> {
        let bytes = Zeroizing::new(postcard::to_allocvec(word).map_err(io::Error::other)?);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        check(length)?;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&bytes)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// The next word of the other end; an error of [`ErrorKind::UnexpectedEof`] once that is gone.
    pub(super) fn hear(&mut self) -> io::Result<Word> {
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

    /// The other end hears nothing more.
    pub(super) fn end(&self) {
        // It may be gone already.
        self.output.get_ref().shutdown(Shutdown::Both).ok();
    }
}

fn check(length: u32) -> io::Result<()> {
    if length <= WORD_BYTES_MAX {
        return Ok(());
    }
    let why = format!("a word of {length} bytes; {WORD_BYTES_MAX} are allowed");
    Err(io::Error::new(ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, Talk) {
        let (ours, its) = UnixStream::pair().unwrap();
        (ours, Talk::over(its).unwrap())
    }

    #[test]
    fn what_is_said_is_heard_and_the_end_too() {
        let (ours, mut its) = pair();
        let mut ours = Talk::over(ours).unwrap();
        let value = Zeroizing::new(vec![7; 300]);
        ours.say(&Word::Record(Key::Pool(9), Some(value.clone())))
            .unwrap();
        ours.flush().unwrap();
        drop(ours);
        let heard = its.hear().unwrap();
        assert!(matches!(heard, Word::Record(Key::Pool(9), Some(it)) if it == value));
        let over = its.hear().map(drop).unwrap_err();
        assert_eq!(over.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn nobodys_word_makes_room_for_more_than_comes() {
        let too_much = (WORD_BYTES_MAX + 1).to_le_bytes();
        // The second is cut off, the third is no word.
        let lengths = [too_much, WORD_BYTES_MAX.to_le_bytes(), 1_u32.to_le_bytes()];
        for length in lengths {
            let (mut ours, mut its) = pair();
            ours.write_all(&length).unwrap();
            ours.write_all(&[0xFF]).unwrap();
            drop(ours);
            its.hear().map(drop).unwrap_err();
        }
        let mut its = pair().1;
        let long = Word::Refused("x".repeat(WORD_BYTES_MAX as usize));
        its.say(&long).unwrap_err();
    }
}
