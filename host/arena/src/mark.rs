//! The first page of the file of an arena: the mark of its last user, and the last commit of the user's journal.
//!
//! A daemon keeps the bytes of an earlier run only if they really are from that run. They are not if another daemon
//! used the file in between, or if the file is a new one with the same name: then the mark differs. The number of the
//! last commit detects a journal that is older than the bytes.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::Mapping;

/// A number that is never used twice.
pub type Mark = [u8; 16];

const MAGIC: [u8; 16] = *b"fabricBIOS arena";

/// Offset of the number of the last commit, which follows the mark.
const COMMITS_AT: usize = 32;

pub(crate) fn read_commits(header: &Mapping) -> u64 {
    let mut number = [0; 8];
    header.copy_out(COMMITS_AT, &mut number);
    u64::from_be_bytes(number)
}

pub(crate) fn write_commits(header: &Mapping, number: u64) {
    header.copy_in(COMMITS_AT, &number.to_be_bytes());
}

pub(crate) fn read(header: &Mapping) -> Option<Mark> {
    let (mut magic, mut mark) = ([0; 16], [0; 16]);
    header.copy_out(0, &mut magic);
    header.copy_out(MAGIC.len(), &mut mark);
    (magic == MAGIC && mark != [0; 16]).then_some(mark)
}

/// Marks the file as an arena. Does not change the mark of the user.
pub(crate) fn write_magic(header: &Mapping) {
    header.copy_in(0, &MAGIC);
}

/// Whether the file is an arena, with or without the mark of a user.
pub(crate) fn is_arena(file: &File) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(magic == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn write(header: &Mapping, mark: &Mark) {
    header.copy_in(MAGIC.len(), mark);
    write_magic(header);
}
