//! `block …`: a lease of block storage as a device of this machine, or its blocks without one.

mod attach;
mod transfer;

use std::path::Path;

use fabricbios_client::Node;

pub(super) use attach::detach;

use crate::{args::Block, failure::Failure, output::Output};

pub(super) fn run(
    node: &Node,
    identity: &Path,
    command: Block,
    output: Output,
) -> Result<(), Failure> {
    match command {
        Block::Read { place, len } => transfer::read(node, &place, len, output),
        Block::Write { place } => transfer::write(node, &place, output),
        Block::Attach(place) => attach::attach(node, identity, &place, output),
        Block::Keep(place) => attach::keep(node, &place),
        Block::Detach(place) => detach(&place, output),
    }
}
