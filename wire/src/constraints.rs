//! 0x0904 transport and 0x0905 rotate-on-renew: asked for with a lease, echoed in what is enforced.

use crate::{
    DecodeError, Effective, Transport, cpu_isolation, gpu_exclusivity, nvmeof, tag, tlv::TlvArea,
    write::Writer,
};

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

/// The echo of a lease.
pub(crate) fn find_effective(area: &TlvArea<'_>) -> Result<Effective, DecodeError> {
    Ok(Effective {
        cpu_isolation: cpu_isolation::find(area)?,
        gpu_exclusivity: gpu_exclusivity::find(area)?,
        transport: find_transport(area)?,
        rotate_on_renew: area.flag(tag::LEASE_ROTATE_ON_RENEW)?,
        read_only: area.flag(tag::LEASE_READ_ONLY)?,
        mutual_auth: area.flag(tag::LEASE_MUTUAL_AUTH)?,
    })
}

pub(crate) fn write_effective(w: &mut Writer, effective: &Effective) {
    cpu_isolation::write(w, effective.cpu_isolation);
    gpu_exclusivity::write(w, effective.gpu_exclusivity);
    write_transport(w, effective.transport);
    write_rotate_on_renew(w, effective.rotate_on_renew);
    nvmeof::write_classes(w, effective.read_only, effective.mutual_auth);
}
