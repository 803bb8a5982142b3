//! The first page of an arena's file: who used it last, and how far that went.
//!
//! Whoever keeps the bytes of an earlier run has to know that they are those of that run: not of another
//! daemon that used the file in between, and not of a file that was made anew under the same name. The number of
//! the last commit of its journal tells a journal that is older than the bytes.

use crate::Mapping;

/// Any number that is not used twice.
pub type Mark = [u8; 16];

const MAGIC: [u8; 16] = *b"fabricBIOS arena";

/// Behind the mark.
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
    (magic == MAGIC).then_some(mark)
}

pub(crate) fn write(header: &Mapping, mark: &Mark) {
    header.copy_in(MAGIC.len(), mark);
    header.copy_in(0, &MAGIC);
}
