//! `mem read` and `mem write`: bytes of a lease to standard output, or from standard input.
//!
//! One piece at a time, so that memory is bounded whatever the lease is. A transfer that stops says
//! how far it came.

use std::{
    fs::{File, Metadata},
    io::{self, Read, Write},
    os::fd::AsFd,
};

use fabricbios_client::{Error, MemLease, Node, Road, Transfers};
use fabricbios_wire::RefusalClass;
use serde::Serialize;

use crate::{
    args::{Mem, Place},
    failure::Failure,
    output::{self, Output},
    progress::Progress,
};

/// Enough for both roads to run at their speed.
const PIECE_BYTES: usize = 4 << 20;

pub(super) fn run(node: &Node, command: Mem, output: Output) -> Result<(), Failure> {
    match command {
        Mem::Read { place, len } => with_lease(node, &place, |lease| {
            let end = range_end(&place, len, capacity(lease))?;
            read(lease, place.offset..end, output)
        }),
        Mem::Write { place } => with_lease(node, &place, |lease| {
            write(lease, &place, capacity(lease), output)
        }),
    }
}

/// A failure names the lease.
fn with_lease(
    node: &Node,
    place: &Place,
    work: impl FnOnce(&MemLease) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let named = |failure: Failure| failure.at(&format!("lease {}", place.id));
    let lease = MemLease::open(node, place.id).map_err(|error| named(error.into()))?;
    let transfers = Transfers::default().payload_mac(place.payload_mac);
    lease.set_transfers(match place.road.0 {
        Some(road) => transfers.road(road),
        None => transfers,
    });
    work(&lease).map_err(named)
}

fn capacity(lease: &MemLease) -> u64 {
    let info = lease.info();
    info.binding
        .limits
        .map_or(info.capacity, |limits| limits.length)
}

fn range_end(place: &Place, len: Option<u64>, capacity: u64) -> Result<u64, Failure> {
    let end = match len {
        Some(len) => place.offset.checked_add(len),
        None => Some(capacity),
    };
    let end = end.filter(|end| *end <= capacity && place.offset <= *end);
    end.ok_or_else(|| {
        let what = len.map_or_else(String::new, |len| format!(" --len {len}"));
        let offset = place.offset;
        Failure::usage(format!(
            "--offset {offset}{what} is outside: the lease has {capacity} bytes"
        ))
    })
}

fn read(lease: &MemLease, range: std::ops::Range<u64>, output: Output) -> Result<(), Failure> {
    let total = range.end - range.start;
    let mut progress = Progress::new(Some(total), output);
    let mut stdout = io::stdout().lock();
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(total).unwrap_or(PIECE_BYTES))];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(PIECE_BYTES);
        let piece = &mut piece[..left.min(PIECE_BYTES)];
        let done = at - range.start;
        lease
            .read(at, piece)
            .map_err(|error| so_far(error.into(), "read", done))?;
        stdout.write_all(piece).map_err(Failure::output)?;
        at += piece.len() as u64;
        progress.at(at - range.start);
    }
    stdout.flush().map_err(Failure::output)
}

#[derive(Serialize)]
struct Written {
    lease_id: String,
    offset: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    road: Option<&'static str>,
}

fn write(lease: &MemLease, place: &Place, capacity: u64, output: Output) -> Result<(), Failure> {
    let room = capacity - range_end(place, Some(0), capacity)?;
    let stdin = io::stdin();
    let told = file_bytes(&stdin);
    if let Some(bytes) = told.filter(|bytes| *bytes > room) {
        return Err(too_long(place, capacity, &format!("has {bytes} bytes"), 0));
    }
    let mut progress = Progress::new(told, output);
    let mut stdin = stdin.lock();
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        let length = fill(&mut stdin, &mut piece)
            .map_err(|e| so_far(Failure::local("read standard input", &e), "written", done))?;
        let fits = usize::try_from(room - done).map_or(length, |left| length.min(left));
        lease
            .write(place.offset + done, &piece[..fits])
            .map_err(|error| not_written(error, lease.road(), done))?;
        done += fits as u64;
        progress.at(done);
        if fits < length {
            return Err(too_long(place, capacity, "goes on", done));
        }
        if length < piece.len() {
            break;
        }
    }
    drop(progress);
    report(lease, place, done, output)
}

fn report(lease: &MemLease, place: &Place, bytes: u64, output: Output) -> Result<(), Failure> {
    let road = lease.road().map(Road::name);
    let written = Written {
        lease_id: place.id.to_string(),
        offset: place.offset,
        bytes,
        road,
    };
    output.print(&written, || {
        let over = road.map(|road| format!(" over {road}")).unwrap_or_default();
        format!("{} written at {}{over}", output::size(bytes), place.offset)
    })
}

/// As much as there is, up to a whole piece: less only at the end.
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

/// What is left of standard input, where it is a file.
fn file_bytes(stdin: &io::Stdin) -> Option<u64> {
    let mut file = File::from(stdin.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(Metadata::is_file)?;
    let at = io::Seek::stream_position(&mut file).ok()?;
    Some(metadata.len().saturating_sub(at))
}

fn too_long(place: &Place, capacity: u64, input: &str, done: u64) -> Failure {
    let room = capacity - place.offset;
    so_far(
        Failure::usage(format!(
            "standard input {input}, and from --offset {} the lease takes {room} bytes",
            place.offset
        )),
        "written",
        done,
    )
}

/// Only this process knows what is still on its way, and it ends.
fn not_written(error: Error, road: Option<Road>, done: u64) -> Failure {
    let may_arrive = road == Some(Road::Udp)
        && match &error {
            Error::Refused(refusal) => refusal.class == RefusalClass::Transient,
            Error::Usage(_) | Error::Ended { .. } => false,
            _ => true,
        };
    let failure = so_far(error.into(), "written", done);
    match may_arrive {
        true => failure.loudly(STILL_ON_ITS_WAY),
        false => failure,
    }
}

const STILL_ON_ITS_WAY: &str = "what was not answered may still arrive and be written: \
    `fabricctl lease rotate` makes sure that nothing of it is";

fn so_far(failure: Failure, done: &str, bytes: u64) -> Failure {
    failure.loudly(&match bytes {
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
        let told = |error, road| format!("{:?}", not_written(error, road, 7));
        assert!(told(silent(), Some(Road::Udp)).contains("lease rotate"));
        assert!(!told(silent(), Some(Road::Rdma)).contains("lease rotate"));
        let over = Error::Usage("outside".into());
        assert!(!told(over, Some(Road::Udp)).contains("lease rotate"));
    }
}
