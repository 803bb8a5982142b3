//! A cursor over a peer's bytes that knows its offset. It never reads past the end, and checks each bound before it
//! allocates.

use alloc::{borrow::Cow, string::String, vec::Vec};

use crate::{DecodeError, DecodeFault, LeaseId, ResourceId, error, frame::wrong, tlv::TlvArea};

pub(crate) type Decoded<T> = Result<T, DecodeError>;

#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// `offset`: the start of `bytes`, for errors.
    pub(crate) fn new(bytes: &'a [u8], offset: usize) -> Self {
        Self {
            rest: bytes,
            offset,
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &'static str) -> Decoded<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(field, N));
        };
        self.rest = rest;
        self.offset += N;
        Ok(*head)
    }

    fn take(&mut self, count: usize, field: &'static str) -> Decoded<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.truncated(field, count));
        };
        self.rest = rest;
        self.offset += count;
        Ok(head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Decoded<u8> {
        self.array(field).map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Decoded<u16> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Decoded<u32> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Decoded<u64> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(crate) fn u128(&mut self, field: &'static str) -> Decoded<u128> {
        self.array(field).map(u128::from_be_bytes)
    }

    /// A byte that is 0 or 1.
    pub(crate) fn flag(&mut self, field: &'static str) -> Decoded<bool> {
        self.byte_of(field, "0 or 1", |byte| match byte {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        })
    }

    /// One byte with a known meaning.
    pub(crate) fn byte_of<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        meaning: impl FnOnce(u8) -> Option<T>,
    ) -> Decoded<T> {
        let at = self.offset;
        let byte = self.u8(field)?;
        meaning(byte).ok_or_else(|| invalid_args(at, field, expected, error::number(byte)))
    }

    /// The id of a lease; zero is refused.
    pub(crate) fn lease_id(&mut self) -> Decoded<LeaseId> {
        self.nonzero_id("lease_id").map(LeaseId)
    }

    /// The id of a resource; zero is refused.
    pub(crate) fn resource_id(&mut self) -> Decoded<ResourceId> {
        self.nonzero_id("resource_id").map(ResourceId)
    }

    fn nonzero_id(&mut self, field: &'static str) -> Decoded<u128> {
        let at = self.offset;
        match self.u128(field)? {
            0 => Err(invalid_args(
                at,
                field,
                "an id other than zero",
                Cow::Borrowed("zero"),
            )),
            id => Ok(id),
        }
    }

    /// `u32` length, then that many bytes.
    pub(crate) fn bytes(&mut self, max: usize, field: &'static str) -> Decoded<&'a [u8]> {
        let at = self.offset;
        let said = self.u32(field)?;
        match usize::try_from(said) {
            Ok(length) if length <= max => self.take(length, field),
            _ => Err(too_many(at, field, max, said)),
        }
    }

    /// `u32` length, then text.
    pub(crate) fn text(&mut self, max: usize, field: &'static str) -> Decoded<String> {
        let at = self.offset;
        match core::str::from_utf8(self.bytes(max, field)?) {
            Ok(text) => Ok(String::from(text)),
            Err(other) => {
                let at = at + 4 + other.valid_up_to();
                Err(malformed(at, field, "UTF-8", "other bytes".into()))
            }
        }
    }

    /// `u32` length, then that many bytes of TLVs.
    pub(crate) fn area(&mut self, field: &'static str) -> Decoded<TlvArea<'a>> {
        let bytes = self.bytes(crate::MAX_PAYLOAD, field)?;
        TlvArea::parse(bytes, self.offset - bytes.len())
    }

    /// `u16` count, then that many items of at least `item_bytes` each. Allocates only for as many items as the
    /// remaining bytes can hold.
    pub(crate) fn list<T>(
        &mut self,
        max: usize,
        item_bytes: usize,
        field: &'static str,
        mut item: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let count = self.count(max, item_bytes, field)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn count(&mut self, max: usize, item_bytes: usize, field: &'static str) -> Decoded<usize> {
        let at = self.offset;
        let count = usize::from(self.u16(field)?);
        if count > max {
            return Err(too_many(at, field, max, count));
        }
        if self.rest.len() < count * item_bytes {
            return Err(self.truncated(field, count * item_bytes));
        }
        Ok(count)
    }

    /// The rest of the bytes, which are all zero.
    pub(crate) fn zeros(self, field: &'static str) -> Decoded<()> {
        match self.rest.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(at) => {
                let got = Cow::Borrowed("another byte");
                Err(malformed(self.offset + at, field, "zeros", got))
            }
        }
    }

    /// Checks that all bytes were read.
    pub(crate) fn finish(self) -> Decoded<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let got = error::bytes(self.rest.len());
        Err(malformed(
            self.offset,
            "end of message",
            "nothing more",
            got,
        ))
    }

    fn truncated(&self, field: &'static str, needed: usize) -> DecodeError {
        let got = error::bytes(self.rest.len());
        malformed(self.offset, field, error::bytes(needed), got)
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
}

pub(crate) fn invalid_args(
    offset: usize,
    field: &'static str,
    expected: impl Into<Cow<'static, str>>,
    got: Cow<'static, str>,
) -> DecodeError {
    wrong(DecodeFault::InvalidArgs, offset, field, expected, got)
}

pub(crate) fn too_many(
    offset: usize,
    field: &'static str,
    max: usize,
    got: impl alloc::string::ToString,
) -> DecodeError {
    let expected = alloc::format!("at most {max}");
    malformed(offset, field, expected, error::number(got))
}

fn malformed(
    offset: usize,
    field: &'static str,
    expected: impl Into<Cow<'static, str>>,
    got: Cow<'static, str>,
) -> DecodeError {
    wrong(DecodeFault::Malformed, offset, field, expected, got)
}
