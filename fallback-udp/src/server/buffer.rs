//! Buffers for I/O and reply without a copy: the payload begins on a page, as O_DIRECT needs, and header and tag are right
//! before it.

use fabricbios_wire::{DATA_OVERHEAD, DATAGRAM_MAX};

use crate::ReplyBuffer;

/// An alignment that suits every device.
const PAGE: usize = 4096;
/// Most buffers that are kept for further requests.
const SPARE: usize = 256;

/// Room for one reply, and for the I/O whose bytes it carries.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct Buffer {
    front: [u8; PAGE - DATA_OVERHEAD],
    pub(super) reply: ReplyBuffer,
}

/// The spare buffers of one thread.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<Box<Buffer>>);

impl Buffer {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            front: [0; PAGE - DATA_OVERHEAD],
            reply: [0; DATAGRAM_MAX],
        })
    }

    /// The payload, aligned to a page.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        &mut self.reply[DATA_OVERHEAD..]
    }
}

impl Buffers {
    pub(super) fn take(&mut self) -> Box<Buffer> {
        self.0.pop().unwrap_or_else(Buffer::new)
    }

    pub(super) fn put_back(&mut self, buffer: Box<Buffer>) {
        if self.0.len() < SPARE {
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_begins_on_a_page() {
        assert_eq!(Buffer::new().payload().as_ptr() as usize % PAGE, 0);
    }
}
