//! What a perftest client says over TCP, and what its server answers.
//!
//! Both send the same messages in the same order, the client always before the server. Of the versions from 5.70 on:
//!
//! 1. the version, 16 bytes of text, padded with zeros
//! 2. the size of a page and of a cache line, 4 bytes each
//! 3. the path MTU, a digit (`IBV_MTU_*`) and a zero
//! 4. the line of each queue pair; the same lines again; the first line again. Latency tools send it once more
//! 5. bandwidth tools, after the run (with -b before it): the first line; then five or nine numbers of 8 bytes
//! 6. the first line; then versions before 6.17 send `done` and a zero, which has no answer
//!
//! A line has 108 bytes: LID, reads at once, queue pair, PSN, key, address, the 16 bytes of the GID and the shared receive
//! queue, all hexadecimal with a colon behind each, then a zero. Without a GID it has 59 bytes.

use std::fmt::Write;

/// The longest message.
pub(super) const MESSAGE_MAX: usize = 108;
/// The most queue pairs of one client.
const PAIRS_MAX: usize = 8;

const VERSION_BYTES: usize = 16;
const MTU_BYTES: usize = 2;
const NUMBER_BYTES: usize = 4;
const REPORT_BYTES: usize = 8;
const DONE: &[u8] = b"done\0";
/// Before the GID.
const PREFIX_BYTES: usize = 50;
/// The oldest version that perftest's programs accept of each other.
const OLDEST: f32 = 5.7;
/// From 6.28 on, clients send further parameters to a server of such a version.
const NEWEST: f32 = 6.27;
const NEWEST_TEXT: &str = "6.27";

/// A queue pair, as its line has it. `max_reads`: the most reads and atomics at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) max_reads: u32,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) gid: [u8; 16],
}

/// One message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To be answered with these bytes.
    Answered(Vec<u8>),
    /// To be answered with the line of the node's queue pair.
    Pair(Line),
    /// Not to be answered.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Version,
    PageSize,
    CacheLine,
    Mtu,
    Lines,
}

/// The state of a conversation.
#[derive(Debug)]
pub(super) struct Handshake {
    step: Step,
    /// The path MTU of the client in bytes.
    pub(super) path_mtu: u16,
    /// The queue pairs of the client, in its order.
    qpns: Vec<u32>,
    /// The lines so far.
    lines: usize,
}

impl Handshake {
    pub(super) fn new() -> Self {
        Self {
            step: Step::Version,
            path_mtu: 0,
            qpns: Vec::new(),
            lines: 0,
        }
    }

    /// Reads the next message from the bytes that have come and were not read yet; `None`: it is not complete. Also
    /// returns its length.
    ///
    /// # Errors
    /// What is wrong with the bytes, and what to do, for people.
    pub(super) fn next(&mut self, came: &[u8]) -> Result<Option<(Message, usize)>, String> {
        match self.step {
            Step::Version => self.version(came),
            Step::PageSize => Ok(self.number(came, Step::CacheLine)),
            Step::CacheLine => Ok(self.number(came, Step::Mtu)),
            Step::Mtu => self.mtu(came),
            Step::Lines => self.line_or_report(came),
        }
    }

    /// Whether the client may be at its run, which takes any time.
    pub(super) fn is_running(&self) -> bool {
        !self.qpns.is_empty() && self.lines > 2 * self.qpns.len()
    }

    /// Whether the client has ended its run and has said goodbye.
    pub(super) fn is_complete(&self) -> bool {
        !self.qpns.is_empty() && self.lines >= self.lines_max()
    }

    fn lines_max(&self) -> usize {
        2 * self.qpns.len() + 3
    }

    fn version(&mut self, came: &[u8]) -> Result<Option<(Message, usize)>, String> {
        let came = &came[..came.len().min(VERSION_BYTES)];
        let end = came.iter().position(|byte| *byte == 0);
        let (text, padding) = came.split_at(end.unwrap_or(came.len()));
        let is_version = text
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let is_padded = padding.iter().all(|byte| *byte == 0) && end != Some(0);
        let is_whole = came.len() == VERSION_BYTES;
        if !is_version || !is_padded || is_whole && end.is_none() {
            let begins = shown(came);
            return Err(format!("it is no perftest client: it began with {begins}"));
        }
        if !is_whole {
            return Ok(None);
        }
        let text = str::from_utf8(text).unwrap_or_default();
        let version: f32 = text
            .parse()
            .map_err(|_no_number| format!("it has no version of perftest: {text:?}"))?;
        if version < OLDEST {
            return Err(format!(
                "its perftest speaks version {text} of the handshake; 5.70 is the first that can be served"
            ));
        }
        let mut answer = came.to_vec();
        if version > NEWEST {
            answer.fill(0);
            answer[..NEWEST_TEXT.len()].copy_from_slice(NEWEST_TEXT.as_bytes());
        }
        self.step = Step::PageSize;
        Ok(Some((Message::Answered(answer), VERSION_BYTES)))
    }

    fn number(&mut self, came: &[u8], next: Step) -> Option<(Message, usize)> {
        let number = came.get(..NUMBER_BYTES)?;
        self.step = next;
        Some((Message::Answered(number.to_vec()), NUMBER_BYTES))
    }

    fn mtu(&mut self, came: &[u8]) -> Result<Option<(Message, usize)>, String> {
        let Some(mtu) = came.get(..MTU_BYTES) else {
            return Ok(None);
        };
        let [digit @ b'1'..=b'5', 0] = *mtu else {
            return Err(format!("its path MTU is none: {}", shown(mtu)));
        };
        self.path_mtu = 128 << (digit - b'0');
        self.step = Step::Lines;
        Ok(Some((Message::Answered(mtu.to_vec()), MTU_BYTES)))
    }

    fn line_or_report(&mut self, came: &[u8]) -> Result<Option<(Message, usize)>, String> {
        if came.len() < DONE.len() {
            return Ok(None);
        }
        if is_line(came) {
            return self.line(came);
        }
        if !self.is_running() {
            let begins = shown(came);
            return Err(format!("its line begins with {begins}, and not with a LID"));
        }
        if came.starts_with(DONE) {
            return Ok(Some((Message::Done, DONE.len())));
        }
        // The node has run nothing. A client that measures both directions (-b) adds the server's numbers to its own.
        let whole = came.len() >= REPORT_BYTES;
        Ok(whole.then(|| (Message::Answered(vec![0; REPORT_BYTES]), REPORT_BYTES)))
    }

    fn line(&mut self, came: &[u8]) -> Result<Option<(Message, usize)>, String> {
        // Without a GID, the shared receive queue follows, whose third digit is where a GID has its first colon.
        if came.get(PREFIX_BYTES + 2).is_some_and(|byte| *byte != b':') {
            return Err(
                "its line has no GID: give it -x INDEX, with the index of a GID of its device"
                    .to_owned(),
            );
        }
        let Some(text) = came.get(..MESSAGE_MAX) else {
            return Ok(None);
        };
        let (line, shared_queue) = parsed(text)
            .ok_or_else(|| format!("its line is none of perftest's: {}", shown(text)))?;
        if shared_queue != 0 {
            return Err(
                "it wants XRC or DC: only -c RC, which is the default, can be served".to_owned(),
            );
        }
        if !self.qpns.contains(&line.qpn) {
            if self.lines > self.qpns.len() {
                let qpn = line.qpn;
                return Err(format!(
                    "it names queue pair {qpn} after it has repeated its lines"
                ));
            }
            if self.qpns.len() == PAIRS_MAX {
                return Err(format!(
                    "it has more than {PAIRS_MAX} queue pairs: give it -q {PAIRS_MAX} or fewer"
                ));
            }
            self.qpns.push(line.qpn);
        }
        if self.lines == self.lines_max() {
            return Err(
                "it sends more lines than one run has: -b with -a cannot be served".to_owned(),
            );
        }
        self.lines += 1;
        Ok(Some((Message::Pair(line), MESSAGE_MAX)))
    }
}

impl Line {
    /// The line as a server sends it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self {
            max_reads,
            qpn,
            psn,
            rkey,
            addr,
            gid,
        } = self;
        let mut text = format!("0000:{max_reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:");
        for byte in gid {
            // Writing to a String cannot fail.
            write!(text, "{byte:02x}:").ok();
        }
        text.push_str("00000000:\0");
        text.into_bytes()
    }
}

/// Whether the bytes begin like a line: four digits and a colon.
fn is_line(came: &[u8]) -> bool {
    came.get(4) == Some(&b':') && number(&came[..4]).is_some()
}

/// A line of 108 bytes, and the number of its shared receive queue.
fn parsed(text: &[u8]) -> Option<(Line, u64)> {
    let (last, fields) = text.split_last()?;
    let mut fields = fields.strip_suffix(b":")?.split(|byte| *byte == b':');
    let mut field = |digits| {
        fields
            .next()
            .filter(|it| it.len() == digits)
            .and_then(number)
    };
    let _lid = field(4)?;
    let mut line = Line {
        max_reads: u32::try_from(field(4)?).ok()?,
        qpn: u32::try_from(field(6)?).ok()?,
        psn: u32::try_from(field(6)?).ok()?,
        rkey: u32::try_from(field(8)?).ok()?,
        addr: field(16)?,
        gid: [0; 16],
    };
    for byte in &mut line.gid {
        *byte = u8::try_from(field(2)?).ok()?;
    }
    let shared_queue = field(8)?;
    (*last == 0 && line.qpn != 0 && fields.next().is_none()).then_some((line, shared_queue))
}

/// A number in hexadecimal digits.
fn number(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok()?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(text, 16).ok())?
}

/// The first bytes, without control characters.
fn shown(bytes: &[u8]) -> String {
    format!(
        "{:?}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(16)])
    )
}

#[cfg(test)]
mod tests;
