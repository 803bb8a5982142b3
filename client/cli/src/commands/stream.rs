//! Copies bytes of a lease to standard output, or from standard input.
//!
//! It copies one piece at a time, so that memory is bounded for any size of lease. A failed transfer reports the number
//! of copied bytes.

use std::{
    fs::{File, Metadata},
    io::{self, Read, Write},
    os::fd::AsFd,
    time::Duration,
};

use fabricbios_client::{DataTransport, Error, Transfers};
use fabricbios_wire::{LeaseId, RefusalClass, Size};

use crate::{
    failure::Failure,
    json::{Object, field},
    output::Output,
    progress::Progress,
};

/// Large enough for full speed on every transport, and a multiple of every block size.
const PIECE_BYTES: usize = 4 << 20;

/// Without patience, a transfer still waits for this long for a node that says nothing at all: datagrams get lost.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// A lease that can be read and written.
pub(super) trait Store {
    fn lease_id(&self) -> LeaseId;
    /// Offsets and lengths are multiples of this number of bytes.
    fn unit(&self) -> u64;
    /// Size in bytes.
    fn bytes(&self) -> u64;
    /// The transport of the last transfer.
    fn transport(&self) -> Option<DataTransport>;
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error>;
    /// Makes all writes durable.
    fn finish(&self) -> Result<(), Error>;
    /// The message if the writes were not made durable; `None`: they need not be.
    fn unfinished(&self) -> Option<&'static str>;
}

/// Reads `len` bytes from `offset` on, or all bytes to the end.
pub(super) fn read(
    store: &impl Store,
    offset: u64,
    len: Option<u64>,
    output: Output,
) -> Result<(), Failure> {
    let end = range_end(store, offset, len)?;
    let total = end - offset;
    let mut progress = Progress::new(Some(total), output);
    let mut stdout = io::stdout().lock();
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(total).unwrap_or(PIECE_BYTES))];
    let mut at = offset;
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(PIECE_BYTES);
        let piece = &mut piece[..left.min(PIECE_BYTES)];
        store
            .read(at, piece)
            .map_err(|error| so_far(error.into(), "read", at - offset))?;
        stdout.write_all(piece).map_err(Failure::output)?;
        at += piece.len() as u64;
        progress.at(at - offset);
    }
    stdout.flush().map_err(Failure::output)
}

fn range_end(store: &impl Store, offset: u64, len: Option<u64>) -> Result<u64, Failure> {
    let capacity = store.bytes();
    let end = match len {
        Some(len) => offset.checked_add(len),
        None => Some(capacity),
    };
    let what = len.map_or_else(String::new, |len| format!(" --len {len}"));
    let unit = store.unit();
    match end.filter(|end| *end <= capacity && offset <= *end) {
        Some(end) if offset.is_multiple_of(unit) && end.is_multiple_of(unit) => Ok(end),
        Some(_) => Err(Failure::usage(format!(
            "--offset {offset}{what} is not of whole blocks: a block of this lease has {unit} bytes"
        ))),
        None => Err(Failure::usage(format!(
            "--offset {offset}{what} is outside of the lease, which has {capacity} bytes"
        ))),
    }
}

/// Writes all of standard input at `offset`.
pub(super) fn write(store: &impl Store, offset: u64, output: Output) -> Result<(), Failure> {
    let bytes_max = range_end(store, offset, None)? - offset;
    let stdin = io::stdin();
    let input_bytes = file_bytes(&stdin);
    if let Some(bytes) = input_bytes.filter(|bytes| *bytes > bytes_max) {
        return Err(too_long(
            offset,
            bytes_max,
            &format!("has {bytes} bytes"),
            0,
        ));
    }
    if let Some(bytes) = input_bytes.filter(|bytes| !bytes.is_multiple_of(store.unit())) {
        return Err(no_block(store, &format!("has {bytes} bytes"), 0));
    }
    let mut progress = Progress::new(input_bytes, output);
    let copied = copy(store, offset, bytes_max, &mut stdin.lock(), &mut progress);
    drop(progress);
    let done = copied.map_err(|stopped| stopped.settled(store))?;
    store
        .finish()
        .map_err(|error| unfinished(so_far(error.into(), "written", done), store))?;
    report(store, offset, done, output)
}

/// A copy that failed.
struct Stopped {
    failure: Failure,
    done: u64,
    /// Whether the input failed, and not the lease.
    is_input: bool,
}

impl Stopped {
    /// The failure, after making the written bytes durable if the node works.
    fn settled(self, store: &impl Store) -> Failure {
        let is_kept = self.done == 0 || (self.is_input && store.finish().is_ok());
        match is_kept {
            true => self.failure,
            false => unfinished(self.failure, store),
        }
    }
}

fn unfinished(failure: Failure, store: &impl Store) -> Failure {
    match store.unfinished() {
        Some(what) => failure.and_message(what),
        None => failure,
    }
}

fn copy(
    store: &impl Store,
    offset: u64,
    bytes_max: u64,
    stdin: &mut impl Read,
    progress: &mut Progress,
) -> Result<u64, Stopped> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    let input = |failure, done| Stopped {
        failure,
        done,
        is_input: true,
    };
    loop {
        let length = fill(stdin, &mut piece).map_err(|error| {
            let failure = Failure::local("read standard input", &error);
            input(so_far(failure, "written", done), done)
        })?;
        let fits = usize::try_from(bytes_max - done).map_or(length, |left| length.min(left));
        let whole = usize::try_from(store.unit()).map_or(0, |unit| fits - fits % unit);
        store
            .write(offset + done, &piece[..whole])
            .map_err(|error| Stopped {
                failure: not_written(error, store.transport(), done),
                done,
                is_input: false,
            })?;
        done += whole as u64;
        progress.at(done);
        if fits < length {
            return Err(input(too_long(offset, bytes_max, "goes on", done), done));
        }
        if whole < fits {
            let rest = fits - whole;
            let why = format!("ends {rest} bytes into a block");
            return Err(input(no_block(store, &why, done), done));
        }
        if length < piece.len() {
            return Ok(done);
        }
    }
}

fn report(store: &impl Store, offset: u64, bytes: u64, output: Output) -> Result<(), Failure> {
    let transport = store.transport().map(DataTransport::name);
    let written = Object::from([
        field("lease_id", store.lease_id().to_string()),
        field("offset", offset),
        field("bytes", bytes),
        field("transport", transport),
    ]);
    output.print(&written, || {
        let over = transport
            .map(|transport| format!(" over {transport}"))
            .unwrap_or_default();
        format!("{} written at {offset}{over}", Size(bytes))
    })
}

/// The options of the transfers of a command with this patience.
pub(super) fn transfers(payload_mac: bool, patience: Duration) -> Transfers {
    let give_up = match patience {
        Duration::ZERO => SILENT_MAX,
        patience => patience,
    };
    Transfers::default()
        .payload_mac(payload_mac)
        .give_up(give_up)
}

/// Fills the piece; it stays shorter only at the end of the input.
fn fill(from: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The remaining bytes of standard input, if it is a file.
fn file_bytes(stdin: &io::Stdin) -> Option<u64> {
    let mut file = File::from(stdin.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(Metadata::is_file)?;
    let at = io::Seek::stream_position(&mut file).ok()?;
    Some(metadata.len().saturating_sub(at))
}

fn too_long(offset: u64, bytes_max: u64, input: &str, done: u64) -> Failure {
    so_far(
        Failure::usage(format!(
            "standard input {input}, and from --offset {offset} the lease takes {bytes_max} bytes"
        )),
        "written",
        done,
    )
}

fn no_block(store: &impl Store, input: &str, done: u64) -> Failure {
    let unit = store.unit();
    so_far(
        Failure::usage(format!(
            "standard input {input}, and only whole blocks of {unit} bytes are written"
        )),
        "written",
        done,
    )
}

/// The failure of a write. Datagrams of it may arrive after this process has ended.
fn not_written(error: Error, transport: Option<DataTransport>, done: u64) -> Failure {
    let may_arrive = transport == Some(DataTransport::Udp)
        && match &error {
            Error::Refused(refusal) => refusal.class == RefusalClass::Transient,
            Error::Usage(_) | Error::Ended { .. } | Error::InGrace { .. } => false,
            _ => true,
        };
    let what = "bytes were written, and any part of the next piece may have been";
    let later = match may_arrive {
        true => " or may yet be: `fabricctl lease rotate` prevents that",
        false => "",
    };
    Failure::from(short(error)).and_message(&format!("{done} {what}{later}"))
}

/// The error without the advice to query the lease: the failure reports the bytes that may have been written instead.
fn short(error: Error) -> Error {
    match error {
        Error::Unreachable { node, why, .. } => Error::Unreachable {
            node,
            why,
            may_have_happened: false,
        },
        other => other,
    }
}

fn so_far(failure: Failure, done: &str, bytes: u64) -> Failure {
    failure.and_message(&match bytes {
        0 => format!("nothing was {done} before"),
        _ => format!("{bytes} bytes were {done} before"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_an_answer_says_what_may_still_happen() {
        let silent = || Error::Unreachable {
            node: "[::1]:5702".into(),
            why: "no answer".into(),
            may_have_happened: true,
        };
        let text = |error, transport| format!("{:?}", not_written(error, transport, 7));
        assert!(text(silent(), Some(DataTransport::Udp)).contains("lease rotate"));
        assert!(!text(silent(), Some(DataTransport::Rdma)).contains("lease rotate"));
        let over = Error::Usage("outside".into());
        assert!(!text(over, Some(DataTransport::Udp)).contains("lease rotate"));
    }
}
