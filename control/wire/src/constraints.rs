//! 0x0904 transport and 0x0905 rotate-on-renew: terms of a request, repeated among the enforced classes of an answer.

use crate::{
    DecodeError, Effective, Enforcement, Transport, cpu, gpu, nvmeof, tag, tlv::TlvArea,
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

/// Reads the enforced classes of a lease.
pub(crate) fn find_effective(area: &TlvArea<'_>) -> Result<Effective, DecodeError> {
    Ok(Effective {
        cpu_isolation: cpu::find_isolation(area)?,
        gpu_exclusivity: gpu::find(area)?,
        transport: find_transport(area)?,
        rotate_on_renew: area.flag(tag::LEASE_ROTATE_ON_RENEW)?,
        read_only: area.flag(tag::LEASE_READ_ONLY)?,
        mutual_auth: area.flag(tag::LEASE_MUTUAL_AUTH)?,
        cpu_execution_mode: cpu::find_execution_mode(area)?,
        cpu_execution_width: cpu::find_execution_width(area)?,
        cpu_partition: cpu::find_partition(area)?,
        net_rate: area.read(tag::LEASE_NET_RATE, |tlv| {
            tlv.byte_of("enforcement", "0 or 1", Enforcement::from_byte)
        })?,
        gpu_execution_mode: gpu::find_execution_mode(area)?,
        gpu_compute_slices: gpu::find_compute_slices(area)?,
    })
}

pub(crate) fn write_effective(w: &mut Writer, effective: &Effective) {
    cpu::write_isolation(w, effective.cpu_isolation);
    gpu::write(w, effective.gpu_exclusivity);
    write_transport(w, effective.transport);
    write_rotate_on_renew(w, effective.rotate_on_renew);
    nvmeof::write_classes(w, effective.read_only, effective.mutual_auth);
    cpu::write_execution(
        w,
        effective.cpu_execution_mode,
        effective.cpu_execution_width,
        effective.cpu_partition,
    );
    w.tlv_if(tag::LEASE_NET_RATE, effective.net_rate.map(|it| [it as u8]));
    gpu::write_execution(
        w,
        effective.gpu_execution_mode,
        effective.gpu_compute_slices,
    );
}
