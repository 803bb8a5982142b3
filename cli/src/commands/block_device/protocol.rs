//! What the kernel's NBD driver says over its socket, and is answered (linux/nbd.h and the NBD project's
//! doc/proto.md, "Transmission phase"). Pure: bytes in, requests out.

/// `magic u32, flags u16, type u16, cookie u64, offset u64, length u32`, big-endian.
const HEADER_BYTES: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Longest request: what the driver allows itself (65,536 sectors). More is not what it sends.
pub(super) const LENGTH_MAX: u32 = 32 << 20;

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Comes back in the reply.
    pub(super) cookie: u64,
    /// Bytes from the start of the device.
    pub(super) offset: u64,
    pub(super) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// So many bytes.
    Read(u32),
    Write(Vec<u8>),
    Flush,
    /// No more requests; it gets no reply.
    Disconnect,
    /// Nothing that was offered.
    Other,
}

/// The other end does not speak NBD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotNbd;

/// Cuts a stream into requests.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    /// How many of them were taken.
    taken: usize,
}

impl Decoder {
    /// What came.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next request that is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Request>, NotNbd> {
        let rest = &self.bytes[self.taken..];
        let Some((header, payload)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(part(header, 24));
        if u32::from_be_bytes(part(header, 0)) != REQUEST_MAGIC || length > LENGTH_MAX {
            return Err(NotNbd);
        }
        let mut taken = HEADER_BYTES;
        let what = match u16::from_be_bytes(part(header, 6)) {
            0 => What::Read(length),
            1 => {
                let Some(payload) = payload.get(..length as usize) else {
                    return Ok(None);
                };
                taken += payload.len();
                What::Write(payload.to_vec())
            }
            2 => What::Disconnect,
            3 => What::Flush,
            _ => What::Other,
        };
        let request = Request {
            cookie: u64::from_be_bytes(part(header, 8)),
            offset: u64::from_be_bytes(part(header, 16)),
            what,
        };
        self.taken += taken;
        Ok(Some(request))
    }
}

/// The head of a reply: what a READ brought follows it if `error`, an errno, is 0.
pub(super) fn reply(cookie: u64, error: u32) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// `N` bytes from `at`, which the caller knows to be there.
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

    fn all(decoder: &mut Decoder) -> Vec<What> {
        std::iter::from_fn(|| decoder.next().unwrap())
            .inspect(|request| assert_eq!((request.cookie, request.offset), (7, 4096)))
            .map(|request| request.what)
            .collect()
    }

    fn stream() -> (Vec<u8>, [What; 5]) {
        let bytes = [
            request(0, 512, &[]),
            request(1, 3, b"abc"),
            request(3, 0, &[]),
            request(4, 512, &[]),
            request(2, 0, &[]),
        ];
        let whats = [
            What::Read(512),
            What::Write(b"abc".to_vec()),
            What::Flush,
            What::Other,
            What::Disconnect,
        ];
        (bytes.concat(), whats)
    }

    #[test]
    fn requests_are_found_however_the_stream_is_cut() {
        let (bytes, whats) = stream();
        for size in [1, 2, 27, 28, 29, 1000] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                decoder.feed(piece);
                found.extend(all(&mut decoder));
            }
            assert_eq!(found, whats, "{size}");
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
