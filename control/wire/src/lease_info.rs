//! A lease as bytes (layout ours): 88 fixed bytes, then a `u32` length and TLVs: the lease id
//! again as 0x0101 (the sources make it part of every binding), the coordinates, the
//! enforced classes, the request token, the tenant, and the end.

use alloc::{borrow::Cow, boxed::Box};

use crate::{
    Binding, Generation, LEASES_PER_PAGE_MAX, LeaseId, LeaseInfo, LeasePage, LeasePhase,
    LeaseStatus, ResourceType, binding_tlv, constraints, lease_end, lease_intent,
    read::{Decoded, Reader},
    tag,
    tlv::Tlv,
    write::Writer,
};

/// Bytes of a lease without TLVs: the fixed part, the length, and TLV 0x0101.
const LEASE_MIN_LEN: usize = 88 + 4 + 20;

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<LeaseInfo> {
    let mut lease = read_fixed(r)?;
    let area = r.area("tlvs")?;
    area.require(tag::LEASE_ID, |tlv| check_lease_id(tlv, lease.lease_id))?;
    lease.effective = constraints::find_effective(&area)?;
    lease.intent = Some(lease_intent::find(&area)?)
        .filter(|it| !it.is_empty())
        .map(Box::new);
    lease.request_token = constraints::find_request_token(&area)?;
    lease.binding = binding_tlv::read(&area, lease.resource_type())?;
    lease.tenant = lease_end::find_tenant(&area)?;
    lease.end = lease_end::find(&area)?;
    Ok(lease)
}

fn read_fixed(r: &mut Reader<'_>) -> Decoded<LeaseInfo> {
    Ok(LeaseInfo {
        lease_id: r.lease_id()?,
        resource_id: r.resource_id()?,
        binding: Binding::plain(ResourceType::from_code(r.u16("resource_type")?)),
        status: r.byte_of("status", "0 to 2", LeaseStatus::from_byte)?,
        phase: r.byte_of("phase", "0 to 6", LeasePhase::from_byte)?,
        generation: Generation(r.u32("generation")?),
        capacity: r.u64("capacity")?,
        granted_at_unix_ms: r.u64("granted_at_unix_ms")?,
        expires_at_unix_ms: r.u64("expires_at_unix_ms")?,
        renewable_at_unix_ms: r.u64("renewable_at_unix_ms")?,
        grace_ends_unix_ms: r.u64("grace_ends_unix_ms")?,
        remaining_ms: r.u64("remaining_ms")?,
        effective: Default::default(),
        intent: None,
        request_token: None,
        tenant: None,
        end: None,
    })
}

fn check_lease_id(tlv: &Tlv<'_>, lease_id: LeaseId) -> Decoded<()> {
    let got = LeaseId(u128::from_be_bytes(tlv.fixed()?));
    if got == lease_id {
        return Ok(());
    }
    Err(tlv.unknown_value(
        0,
        "lease_id",
        Cow::Borrowed("the id of the fixed part"),
        got,
    ))
}

pub(crate) fn write(w: &mut Writer, lease: &LeaseInfo) {
    write_fixed(w, lease);
    w.area(|w| {
        w.tlv(tag::LEASE_ID, &lease.lease_id.0.to_be_bytes());
        binding_tlv::write(w, &lease.binding);
        w.ascending(|w| {
            constraints::write_effective(w, &lease.effective);
            constraints::write_request_token(w, lease.request_token);
            if let Some(intent) = &lease.intent {
                lease_intent::write(w, intent);
            }
        });
        lease_end::write(w, lease.tenant.as_deref(), lease.end.as_deref());
    });
}

fn write_fixed(w: &mut Writer, lease: &LeaseInfo) {
    w.u128(lease.lease_id.0)
        .u128(lease.resource_id.0)
        .u16(lease.resource_type().code());
    w.u8(lease.status as u8)
        .u8(lease.phase as u8)
        .u32(lease.generation.0);
    w.u64(lease.capacity)
        .u64(lease.granted_at_unix_ms)
        .u64(lease.expires_at_unix_ms);
    w.u64(lease.renewable_at_unix_ms)
        .u64(lease.grace_ends_unix_ms)
        .u64(lease.remaining_ms);
}

/// `u8` presence and `u128` of the next id, then a list.
pub(crate) fn read_page(r: &mut Reader<'_>) -> Decoded<LeasePage> {
    let next = if r.flag("next")? {
        Some(r.lease_id()?)
    } else {
        None
    };
    let leases = r.list(LEASES_PER_PAGE_MAX, LEASE_MIN_LEN, "leases", read)?;
    Ok(LeasePage { leases, next })
}

pub(crate) fn write_page(w: &mut Writer, page: &LeasePage) {
    w.flag(page.next.is_some());
    if let Some(next) = page.next {
        w.u128(next.0);
    }
    w.list(&page.leases, LEASES_PER_PAGE_MAX, write);
}
