//! 0x0904 transport and 0x0905 rotate-on-renew: terms of a request, repeated among the enforced classes of an answer. 0x090E
//! request token: repeated in every answer about the lease.

use crate::{DecodeError, Effective, RequestToken, Transport, tag, tlv::TlvArea, write::Writer};

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

pub(crate) fn find_request_token(area: &TlvArea<'_>) -> Result<Option<RequestToken>, DecodeError> {
    area.read(tag::LEASE_REQUEST_TOKEN, |tlv| {
        match u128::from_be_bytes(tlv.fixed()?) {
            0 => Err(tlv.unknown_value(0, "token", "16 bytes, not all zero", 0)),
            token => Ok(RequestToken(token)),
        }
    })
}

pub(crate) fn write_request_token(w: &mut Writer, token: Option<RequestToken>) {
    w.tlv_if(
        tag::LEASE_REQUEST_TOKEN,
        token.map(|token| token.0.to_be_bytes()),
    );
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
