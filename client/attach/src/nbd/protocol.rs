//! The requests of the NBD driver over its socket, and the replies (linux/nbd.h and doc/proto.md of the NBD project,
//! "Transmission phase"). Pure: bytes in, requests out.

/// `magic u32, flags u16, type u16, cookie u64, offset u64, length u32`, big-endian.
const HEADER_BYTES: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Longest request of the driver (65,536 sectors).
pub(crate) const LENGTH_MAX: u32 = 32 << 20;

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NbdRequest {
    /// The reply has the same cookie.
    pub(crate) cookie: u64,
    /// Bytes from the start of the device.
    pub(crate) offset: u64,
    pub(crate) command: Command,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Number of bytes.
    Read(u32),
    Write(Vec<u8>),
    Flush,
    /// The last request; it gets no reply.
    Disconnect,
    /// A request that this server did not offer.
    Other,
}

/// The other end does not speak NBD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotNbd;

/// Splits a stream into requests.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    /// Number of decoded bytes.
    taken: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete request.
    pub(crate) fn next(&mut self) -> Result<Option<NbdRequest>, NotNbd> {
        let rest = &self.bytes[self.taken..];
        let Some((header, payload)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(part(header, 24));
        if u32::from_be_bytes(part(header, 0)) != REQUEST_MAGIC || length > LENGTH_MAX {
            return Err(NotNbd);
        }
        let mut taken = HEADER_BYTES;
        let command = match u16::from_be_bytes(part(header, 6)) {
            0 => Command::Read(length),
            1 => {
                let Some(payload) = payload.get(..length as usize) else {
                    return Ok(None);
                };
                taken += payload.len();
                Command::Write(payload.to_vec())
            }
            2 => Command::Disconnect,
            3 => Command::Flush,
            _ => Command::Other,
        };
        let request = NbdRequest {
            cookie: u64::from_be_bytes(part(header, 8)),
            offset: u64::from_be_bytes(part(header, 16)),
            command,
        };
        self.taken += taken;
        Ok(Some(request))
    }
}

/// The header of a reply; the data of a READ follow it if `error`, an errno, is 0.
pub(crate) fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// `N` bytes from `at`; the caller makes sure that they exist.
fn part<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: u16, length: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(4096_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn all(decoder: &mut Decoder) -> Vec<Command> {
        std::iter::from_fn(|| decoder.next().unwrap())
            .inspect(|request| assert_eq!((request.cookie, request.offset), (7, 4096)))
            .map(|request| request.command)
            .collect()
    }

    fn stream() -> (Vec<u8>, [Command; 5]) {
        let bytes = [
            request(0, 512, &[]),
            request(1, 3, b"abc"),
            request(3, 0, &[]),
            request(4, 512, &[]),
            request(2, 0, &[]),
        ];
        let commands = [
            Command::Read(512),
            Command::Write(b"abc".to_vec()),
            Command::Flush,
            Command::Other,
            Command::Disconnect,
        ];
        (bytes.concat(), commands)
    }

    #[test]
    fn requests_are_found_however_the_stream_is_cut() {
        let (bytes, commands) = stream();
        for size in [1, 2, 27, 28, 29, 1000] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.feed(piece);
                found.extend(all(&mut decoder));
            }
            assert_eq!(found, commands, "{size}");
        }
    }

    #[test]
    fn what_is_not_nbd_or_too_long_is_refused_before_it_is_waited_for() {
        for bytes in [vec![0; HEADER_BYTES], request(1, LENGTH_MAX + 1, &[])] {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            assert_eq!(decoder.next(), Err(NotNbd));
        }
    }

    #[test]
    fn a_reply_is_as_the_kernel_expects_it() {
        assert_eq!(
            reply(0x0102, 5),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1, 2]
        );
    }
}
