//! The client side.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use fabricbios_contract::remote::{decode, read_frame};
use fabricbios_wire::LeaseId;

use crate::{of_lease, session::NOT_YOURS};

/// The units of a lease, as its client uses them.
#[derive(Debug)]
pub struct Client {
    numbers: Vec<u32>,
    session: UnixStream,
}

impl Client {
    /// Gets the lease's descriptor. `directory` is the path's directory of sockets.
    ///
    /// # Errors
    /// The lease is not served: it has not begun, or has ended.
    pub fn connect(directory: &Path, lease: LeaseId) -> io::Result<Self> {
        let socket = UnixStream::connect(of_lease(directory, lease))?;
        let frame = read_frame(&socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let session = frame.descriptor.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            numbers: decode(&frame.body).map_err(io::Error::other)?,
            session: session.into(),
        })
    }

    /// Which units the lease has.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Adds to the counter of a unit and returns the new value. `None`: the unit does not belong to the lease.
    ///
    /// # Errors
    /// The lease has ended.
    pub fn add(&mut self, unit: u32, more: u64) -> io::Result<Option<u64>> {
        let question = [&unit.to_le_bytes()[..], &more.to_le_bytes()].concat();
        self.session.write_all(&question)?;
        let mut answer = [0; 8];
        self.session.read_exact(&mut answer)?;
        let sum = u64::from_le_bytes(answer);
        Ok((sum != NOT_YOURS).then_some(sum))
    }

    /// Waits until the node ends the lease.
    ///
    /// # Errors
    /// The node has sent data instead of ending the stream.
    pub fn wait_for_the_end(mut self) -> io::Result<()> {
        match self.session.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
