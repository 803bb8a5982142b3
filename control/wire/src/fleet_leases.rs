//! Leases of a fabric of many nodes: NODE_LEASES and FLEET_LEASES.

use alloc::{borrow::Cow, string::String};

use crate::{
    FLEET_LEASES_PER_PAGE_MAX, FleetLease, FleetLeases, LEASES_PER_REPORT_MAX, LeaseId, LeasePhase,
    LeaseReport, NodeId, ReportPart, ReportedLease, ResourceType, TENANT_KEY_BYTES_MAX, error,
    read::{Decoded, Reader, invalid_args},
    request::is_tenant_name,
    write::Writer,
};

/// Bytes of a reported lease without the name of its tenant.
const LEASE_MIN_LEN: usize = 16 + 16 + 2 + 1 + 8 + 8 + 4;
const LEASE_ID_LEN: usize = 16;

pub(crate) fn read_report(r: &mut Reader<'_>) -> Decoded<LeaseReport> {
    let sequence = r.u64("sequence")?;
    let part = r.byte_of("part", "0 to 4", ReportPart::from_byte)?;
    let leases = r.list(LEASES_PER_REPORT_MAX, LEASE_MIN_LEN, "leases", read_lease)?;
    let at = r.offset();
    let gone = r.list(
        LEASES_PER_REPORT_MAX,
        LEASE_ID_LEN,
        "gone",
        Reader::lease_id,
    )?;
    if part != ReportPart::Changes && !gone.is_empty() {
        let expected = "none in a part of a whole list";
        return Err(invalid_args(
            at,
            "gone",
            expected,
            error::number(gone.len()),
        ));
    }
    Ok(LeaseReport {
        sequence,
        part,
        leases,
        gone,
    })
}

pub(crate) fn write_report(w: &mut Writer, report: &LeaseReport) {
    w.u64(report.sequence).u8(report.part as u8);
    w.list(&report.leases, LEASES_PER_REPORT_MAX, write_lease);
    w.list(&report.gone, LEASES_PER_REPORT_MAX, |w, id| {
        w.u128(id.0);
    });
}

fn read_lease(r: &mut Reader<'_>) -> Decoded<ReportedLease> {
    Ok(ReportedLease {
        lease_id: r.lease_id()?,
        resource_id: r.resource_id()?,
        resource_type: ResourceType::from_code(r.u16("resource_type")?),
        phase: r.byte_of("phase", "0 to 6", LeasePhase::from_byte)?,
        capacity: r.u64("capacity")?,
        expires_at_unix_ms: r.u64("expires_at_unix_ms")?,
        tenant: read_tenant(r)?,
    })
}

fn read_tenant(r: &mut Reader<'_>) -> Decoded<String> {
    let at = r.offset();
    let tenant = r.text(TENANT_KEY_BYTES_MAX, "tenant")?;
    match is_tenant_key(&tenant) {
        true => Ok(tenant),
        false => Err(invalid_args(
            at,
            "tenant",
            "NAME, or NAME@ and 32 hexadecimal digits",
            Cow::Borrowed("something else"),
        )),
    }
}

/// A name in the fabric of the node, or a name and the fingerprint of another one.
fn is_tenant_key(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match text.split_once('@') {
        None => is_tenant_name(text),
        Some((name, fabric)) => {
            is_tenant_name(name) && fabric.len() == 32 && fabric.bytes().all(is_digit)
        }
    }
}

fn write_lease(w: &mut Writer, lease: &ReportedLease) {
    w.u128(lease.lease_id.0)
        .u128(lease.resource_id.0)
        .u16(lease.resource_type.code())
        .u8(lease.phase as u8);
    w.u64(lease.capacity)
        .u64(lease.expires_at_unix_ms)
        .bytes_at_most(lease.tenant.as_bytes(), TENANT_KEY_BYTES_MAX);
}

pub(crate) fn read_after(r: &mut Reader<'_>) -> Decoded<(LeaseId, NodeId)> {
    Ok((LeaseId(r.u128("after")?), NodeId(r.array("after_node")?)))
}

pub(crate) fn read_page(r: &mut Reader<'_>) -> Decoded<FleetLeases> {
    let more = r.flag("more")?;
    let length = 32 + LEASE_MIN_LEN;
    let leases = r.list(FLEET_LEASES_PER_PAGE_MAX, length, "leases", |r| {
        Ok(FleetLease {
            node_id: NodeId(r.array("node_id")?),
            lease: read_lease(r)?,
        })
    })?;
    Ok(FleetLeases { leases, more })
}

pub(crate) fn write_page(w: &mut Writer, page: &FleetLeases) {
    w.flag(page.more);
    w.list(&page.leases, FLEET_LEASES_PER_PAGE_MAX, |w, it| {
        write_lease(w.raw(&it.node_id.0), &it.lease);
    });
}
