//! 0x0904 transport and 0x0905 rotate-on-renew: terms of a request, repeated among the enforced classes of an answer.

use crate::{DecodeError, Effective, Transport, tag, tlv::TlvArea, write::Writer};

pub(crate) fn find_transport(area: &TlvArea<'_>) -> Result<Option<Transport>, DecodeError> {
    area.read(tag::LEASE_TRANSPORT, |tlv| {
        tlv.byte_of("transport", "0 to 5", Transport::from_byte)
    })
}

pub(crate) fn write_transport(w: &mut Writer, transport: Option<Transport>) {
    w.tlv_if(
        tag::LEASE_TRANSPORT,
        transport.map(|transport| [transport as u8]),
    );
}

pub(crate) fn write_rotate_on_renew(w: &mut Writer, rotate: bool) {
    w.tlv_if(tag::LEASE_ROTATE_ON_RENEW, rotate.then_some([1]));
}

/// Reads the enforced classes of a lease.
pub(crate) fn find_effective(area: &TlvArea<'_>) -> Result<Effective, DecodeError> {
    let mut effective = Effective {
        transport: find_transport(area)?,
        rotate_on_renew: area.flag(tag::LEASE_ROTATE_ON_RENEW)?,
        ..Effective::default()
    };
    effective.find_of_kinds(area)?;
    Ok(effective)
}

/// Writes the enforced classes of a lease, in any order of tags.
pub(crate) fn write_effective(w: &mut Writer, effective: &Effective) {
    write_transport(w, effective.transport);
    write_rotate_on_renew(w, effective.rotate_on_renew);
    effective.write_of_kinds(w);
}
