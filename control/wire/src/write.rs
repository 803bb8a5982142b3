//! Writes big-endian fields. If a part is too long for its length field, the writer notes this and
//! [`Writer::finish`] returns `None`.

use alloc::vec::Vec;

use crate::tlv::TlvArea;

#[derive(Debug)]
pub(crate) struct Writer {
    out: Vec<u8>,
    too_long: bool,
}

impl Writer {
    /// A writer with room for the largest lease with a key, which has 16 affinities of 264 bytes. A buffer that grows
    /// would leave copies of the key behind.
    pub(crate) fn new() -> Self {
        Self {
            out: Vec::with_capacity(8_192),
            too_long: false,
        }
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u128(&mut self, value: u128) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn flag(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// `u32` length, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.counted_u32(|w| {
            w.raw(bytes);
        })
    }

    /// `u32` length, then the text, cut at a character if it is longer than `max` bytes.
    pub(crate) fn text(&mut self, text: &str, max: usize) -> &mut Self {
        self.bytes(cut(text, max).as_bytes())
    }

    /// `u32` length, then TLVs.
    pub(crate) fn area(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.counted_u32(fill)
    }

    /// `u16` count, then the items.
    pub(crate) fn list<T>(
        &mut self,
        items: &[T],
        max: usize,
        mut each: impl FnMut(&mut Self, &T),
    ) -> &mut Self {
        match u16::try_from(items.len()) {
            Ok(count) if items.len() <= max => self.u16(count),
            _ => self.mark_too_long(),
        };
        items.iter().take(max).for_each(|item| each(self, item));
        self
    }

    /// One TLV.
    pub(crate) fn tlv(&mut self, tag: u16, value: &[u8]) -> &mut Self {
        match u16::try_from(value.len()) {
            Ok(length) => self.u16(tag).u16(length).raw(value),
            Err(_) => self.mark_too_long(),
        }
    }

    /// One TLV; nothing if there is no value.
    pub(crate) fn tlv_if<const N: usize>(&mut self, tag: u16, value: Option<[u8; N]>) -> &mut Self {
        match value {
            Some(value) => self.tlv(tag, &value),
            None => self,
        }
    }

    /// TLVs that `fill` writes in any order, in ascending order of tags; those of one tag stay in order. They must not be
    /// secret: the buffer in between is not wiped.
    pub(crate) fn ascending(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.out.len();
        fill(self);
        let written = self.out.split_off(at);
        let mut tlvs: Vec<_> = TlvArea::parse(&written, 0)
            .iter()
            .flat_map(TlvArea::iter)
            .collect();
        tlvs.sort_by_key(|tlv| tlv.tag);
        tlvs.iter().fold(self, |w, tlv| w.tlv(tlv.tag, tlv.value))
    }

    /// `u32` length, then the bytes; not cut: more than `max` of them cannot be told.
    pub(crate) fn bytes_at_most(&mut self, bytes: &[u8], max: usize) -> &mut Self {
        self.counted_at_most(max, |w| {
            w.raw(bytes);
        })
    }

    /// `u32` length, then what `fill` writes; more than `max` bytes of it cannot be told.
    pub(crate) fn counted_at_most(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut Self),
    ) -> &mut Self {
        let at = self.out.len() + 4;
        self.counted_u32(fill);
        self.too_long |= self.out.len() - at > max;
        self
    }

    fn counted_u32(&mut self, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.out.len();
        self.u32(0);
        fill(self);
        match u32::try_from(self.out.len() - at - 4) {
            Ok(length) => self.out[at..at + 4].copy_from_slice(&length.to_be_bytes()),
            Err(_) => self.too_long = true,
        }
        self
    }

    fn mark_too_long(&mut self) -> &mut Self {
        self.too_long = true;
        self
    }

    /// The written bytes. `None`: a part is too long for its length field, or all bytes together are more than `max`.
    pub(crate) fn finish(self, max: usize) -> Option<Vec<u8>> {
        (!self.too_long && self.out.len() <= max).then_some(self.out)
    }

    /// The written bytes, if they fit a payload.
    pub(crate) fn payload(self) -> Option<Vec<u8>> {
        self.finish(crate::MAX_PAYLOAD)
    }
}

/// The longest start of `text` that ends at a character and has at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    &text[..end]
}
