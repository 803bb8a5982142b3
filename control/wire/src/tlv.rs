//! `u16 tag, u16 length, value`, one after another: the form of lease parameters, bindings,
//! refusals and inventory extensions. Unknown tags are skipped. A repeated tag is
//! refused unless it may repeat: two readers could take different values.
//!
//! After [`TlvArea::parse`] every TLV lies within the area, so no later step can panic.

use alloc::{borrow::Cow, format, vec::Vec};

use crate::{DecodeError, DecodeFault, error, tag};

/// Bytes before a value.
pub const TLV_HEADER_LEN: usize = 4;

/// One TLV of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// The tag.
    pub tag: u16,
    /// Start of the value, counted like [`DecodeError::offset`].
    pub offset: usize,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// The value as `N` bytes.
    ///
    /// # Errors
    /// If the value has another length.
    pub fn fixed<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        self.value
            .try_into()
            .ok()
            .ok_or_else(|| self.wrong_length(error::bytes(N)))
    }

    /// The value as a `u32`.
    pub(crate) fn u32(&self) -> Result<u32, DecodeError> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// The value as a `u16` other than 0.
    pub(crate) fn at_least_1(&self, field: &'static str) -> Result<u16, DecodeError> {
        match u16::from_be_bytes(self.fixed()?) {
            0 => Err(self.unknown_value(0, field, "at least 1", 0)),
            number => Ok(number),
        }
    }

    /// The value as one byte with a known meaning.
    pub(crate) fn byte_of<T>(
        &self,
        field: &'static str,
        expected: &'static str,
        meaning: impl FnOnce(u8) -> Option<T>,
    ) -> Result<T, DecodeError> {
        let [byte] = self.fixed()?;
        meaning(byte).ok_or_else(|| self.unknown_value(0, field, expected, byte))
    }

    /// The value as a flag: one byte that is 0 or 1.
    pub(crate) fn flag(&self) -> Result<bool, DecodeError> {
        self.byte_of("flag", "0 or 1", |byte| (byte <= 1).then_some(byte == 1))
    }

    /// The value after the first `skip` bytes, as text of at most `max` bytes.
    pub(crate) fn text(&self, skip: usize, max: usize) -> Result<&'a str, DecodeError> {
        let length = self.value.len().saturating_sub(skip);
        if length > max {
            return Err(self.wrong_length(Cow::Owned(format!("at most {} bytes", skip + max))));
        }
        self.text_within(skip, length)
    }

    /// The value as 1 to `max` bytes of printable ASCII without spaces.
    pub(crate) fn word(&self, max: usize) -> Result<&'a str, DecodeError> {
        let text = self.text(0, max)?;
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true if !text.is_empty() => Ok(text),
            _ => Err(self.unknown_value(0, "text", "printable ASCII without spaces", "others")),
        }
    }

    /// At most `length` bytes after the first `skip` bytes, as text.
    pub(crate) fn text_within(&self, skip: usize, length: usize) -> Result<&'a str, DecodeError> {
        let bytes = self.value.get(skip..skip + length).unwrap_or_default();
        core::str::from_utf8(bytes).map_err(|wrong| {
            let at = skip + wrong.valid_up_to();
            self.unknown_value(at, "text", "UTF-8", "other bytes")
        })
    }

    pub(crate) fn wrong_length(&self, expected: Cow<'static, str>) -> DecodeError {
        let got = error::bytes(self.value.len());
        self.error(
            DecodeFault::InvalidIntent,
            self.offset - 2,
            "length",
            expected,
            got,
        )
    }

    /// The error of an unknown value. `at`: its place, counted from the start of the value.
    pub(crate) fn unknown_value(
        &self,
        at: usize,
        field: &'static str,
        expected: impl Into<Cow<'static, str>>,
        got: impl alloc::string::ToString,
    ) -> DecodeError {
        let got = error::number(got);
        self.error(
            DecodeFault::InvalidIntent,
            self.offset + at,
            field,
            expected.into(),
            got,
        )
    }

    fn error(
        &self,
        fault: DecodeFault,
        offset: usize,
        field: &'static str,
        expected: Cow<'static, str>,
        got: Cow<'static, str>,
    ) -> DecodeError {
        DecodeError {
            fault,
            offset,
            tag: Some(self.tag),
            field,
            expected,
            got,
        }
    }
}

/// A sequence of TLVs whose lengths are checked.
#[derive(Clone, Copy, Debug)]
pub struct TlvArea<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> TlvArea<'a> {
    /// Checks the whole area. `offset`: its start, for errors.
    ///
    /// # Errors
    /// If a TLV is longer than the rest of the area.
    pub fn parse(bytes: &'a [u8], offset: usize) -> Result<Self, DecodeError> {
        let mut walk = Walk {
            rest: bytes,
            offset,
        };
        while walk.step()?.is_some() {}
        Ok(Self { bytes, offset })
    }

    /// All TLVs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'a>> + use<'a> {
        let mut walk = Walk {
            rest: self.bytes,
            offset: self.offset,
        };
        // `parse` has read the same bytes without an error, so this loses none.
        core::iter::from_fn(move || walk.step().ok().flatten())
    }

    /// The TLV with this tag, if there is one.
    ///
    /// # Errors
    /// If the tag comes more than once.
    pub fn find(&self, tag: u16) -> Result<Option<Tlv<'a>>, DecodeError> {
        let mut found = self.iter().filter(|tlv| tlv.tag == tag);
        let first = found.next();
        match found.next() {
            Some(second) => Err(second.unknown_value(0, "tag", "the tag once", "the tag again")),
            None => Ok(first),
        }
    }

    /// All TLVs with this tag.
    ///
    /// # Errors
    /// If there are more than `max`.
    pub fn find_all(&self, tag: u16, max: usize) -> Result<Vec<Tlv<'a>>, DecodeError> {
        let found: Vec<_> = self
            .iter()
            .filter(|tlv| tlv.tag == tag)
            .take(max + 1)
            .collect();
        match found.get(max) {
            Some(over) => {
                let expected = format!("at most {max} of them");
                Err(over.unknown_value(0, "tag", expected, "more"))
            }
            None => Ok(found),
        }
    }

    /// The TLV with this tag, if there is one, read by `read`.
    pub(crate) fn read<T>(
        &self,
        tag: u16,
        read: impl FnOnce(&Tlv<'a>) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        self.find(tag)?.as_ref().map(read).transpose()
    }

    /// The TLV with this tag, read by `read`; an error if it is absent.
    pub(crate) fn require<T>(
        &self,
        tag: u16,
        read: impl FnOnce(&Tlv<'a>) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        self.read(tag, read)?.ok_or_else(|| self.missing(tag))
    }

    /// Whether the flag with this tag is 1. Absent and 0 both mean no.
    pub(crate) fn flag(&self, tag: u16) -> Result<bool, DecodeError> {
        Ok(self.read(tag, Tlv::flag)?.unwrap_or(false))
    }

    pub(crate) fn missing(&self, tag: u16) -> DecodeError {
        DecodeError {
            fault: DecodeFault::InvalidIntent,
            offset: self.offset + self.bytes.len(),
            tag: Some(tag),
            field: "tag",
            expected: Cow::Borrowed("the tag once"),
            got: Cow::Borrowed("none"),
        }
    }
}

struct Walk<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Walk<'a> {
    fn step(&mut self) -> Result<Option<Tlv<'a>>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let Some((&[t0, t1, l0, l1], rest)) = self.rest.split_first_chunk() else {
            return Err(self.overrun(None, "TLV header", TLV_HEADER_LEN, self.rest.len()));
        };
        let tag = u16::from_be_bytes([t0, t1]);
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let Some((value, rest)) = rest.split_at_checked(length) else {
            return Err(self.overrun(Some(tag), "value", length, rest.len()));
        };
        let offset = self.offset + TLV_HEADER_LEN;
        (self.rest, self.offset) = (rest, offset + length);
        Ok(Some(Tlv { tag, offset, value }))
    }

    /// The error of a length that is longer than the rest of the area. The specification wants `InvalidIntent` for a
    /// known tag (cpu-isolation-wire-format.md §3); for any other tag the error is `Malformed`.
    fn overrun(
        &self,
        tag: Option<u16>,
        field: &'static str,
        needed: usize,
        left: usize,
    ) -> DecodeError {
        let known = tag.is_some_and(|tag| tag::name(tag).is_some());
        DecodeError {
            fault: if known {
                DecodeFault::InvalidIntent
            } else {
                DecodeFault::Malformed
            },
            offset: self.offset,
            tag,
            field,
            expected: error::bytes(needed),
            got: error::bytes(left),
        }
    }
}
