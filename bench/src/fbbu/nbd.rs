//! A minimal NBD client: the fixed newstyle handshake, then requests and simple replies (doc/proto.md of the NBD
//! project). It reads all received bytes with one system call, and sends all permitted requests with another.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use super::{BLOCK, BLOCK_BYTES, IN_FLIGHT, Way};

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// C_FIXED_NEWSTYLE and C_NO_ZEROES.
const CLIENT_FLAGS: u32 = 3;
const OPT_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
/// Magic, error, cookie.
const REPLY_BYTES: usize = 16;
/// A round without any reply for this time is invalid.
const SILENCE: Duration = Duration::from_secs(5);

/// A connection.
pub(super) struct Nbd {
    stream: TcpStream,
    /// Received bytes that are not parsed yet: the first `filled` bytes of this buffer.
    inbox: Vec<u8>,
    filled: usize,
    outbox: Vec<u8>,
}

impl Nbd {
    /// Connects to the export without a name.
    pub(super) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let mut nbd = Self {
            stream,
            inbox: vec![0; IN_FLIGHT * (REPLY_BYTES + BLOCK)],
            filled: 0,
            outbox: Vec::new(),
        };
        nbd.shake_hands()?;
        Ok(nbd)
    }

    fn shake_hands(&mut self) -> anyhow::Result<()> {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting)?;
        ensure!(greeting.starts_with(GREETING), "no server of newstyle NBD");
        self.outbox.extend(CLIENT_FLAGS.to_be_bytes());
        self.outbox.extend(&GREETING[8..]);
        self.outbox.extend(OPT_EXPORT_NAME.to_be_bytes());
        self.outbox.extend(0_u32.to_be_bytes());
        self.send()?;
        let mut size_and_flags = [0; 10];
        Ok(self.stream.read_exact(&mut size_and_flags)?)
    }

    /// The contents of a block.
    pub(super) fn read(&mut self, block: u64) -> anyhow::Result<Vec<u8>> {
        self.round(Way::Read, &[block])?;
        // Parsed bytes stay in the buffer until the next read.
        Ok(self.inbox[REPLY_BYTES..REPLY_BYTES + BLOCK].to_vec())
    }

    /// Reads or writes each of the blocks.
    pub(super) fn round(&mut self, way: Way, blocks: &[u64]) -> anyhow::Result<Duration> {
        let (mut sent, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < blocks.len() {
            let until = (answered + IN_FLIGHT).min(blocks.len());
            for block in &blocks[sent..until] {
                self.ask(way, *block);
            }
            sent = until;
            self.send()?;
            answered += self.receive(way)?;
        }
        Ok(start.elapsed())
    }

    fn ask(&mut self, way: Way, block: u64) {
        const FLAGS: u16 = 0;
        let command = match way {
            Way::Read => CMD_READ,
            Way::Write => CMD_WRITE,
        };
        self.outbox.extend(REQUEST_MAGIC.to_be_bytes());
        self.outbox.extend(FLAGS.to_be_bytes());
        self.outbox.extend(command.to_be_bytes());
        self.outbox.extend(block.to_be_bytes());
        self.outbox
            .extend((block * u64::from(BLOCK_BYTES)).to_be_bytes());
        self.outbox.extend(BLOCK_BYTES.to_be_bytes());
        if way == Way::Write {
            self.outbox.extend([0x5A; BLOCK]);
        }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(&self.outbox)?;
        self.outbox.clear();
        Ok(())
    }

    /// Waits for data and parses the complete replies; returns their number.
    fn receive(&mut self, way: Way) -> anyhow::Result<usize> {
        let came = self.stream.read(&mut self.inbox[self.filled..])?;
        ensure!(came > 0, "the server of NBD has hung up");
        self.filled += came;
        let length = match way {
            Way::Read => REPLY_BYTES + BLOCK,
            Way::Write => REPLY_BYTES,
        };
        let whole = self.filled / length;
        self.inbox[..whole * length]
            .chunks(length)
            .try_for_each(check)?;
        self.inbox.copy_within(whole * length..self.filled, 0);
        self.filled -= whole * length;
        Ok(whole)
    }
}

/// A failed reply has no data, so its status is checked before the next reply.
fn check(reply: &[u8]) -> anyhow::Result<()> {
    let (magic, rest) = reply.split_at(4);
    ensure!(magic == REPLY_MAGIC.to_be_bytes(), "no reply of NBD");
    match &rest[..4] {
        [0, 0, 0, 0] => Ok(()),
        error => bail!("NBD: error {error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_failed_or_is_none_ends_the_round() {
        let fine = [&REPLY_MAGIC.to_be_bytes()[..], &[0; 12]].concat();
        assert!(check(&fine).is_ok());
        for at in [0, 3, 4, 7] {
            let mut other = fine.clone();
            other[at] ^= 5;
            assert!(check(&other).is_err(), "byte {at}");
        }
    }
}
