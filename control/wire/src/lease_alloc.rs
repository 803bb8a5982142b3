//! LEASE_ALLOC (0x0200): `u16 resource_type, u128 resource_id, u64 capacity, u32 lease_secs,
//! u32 grace_secs, u32 params_len, params`, the last being TLVs.

use alloc::{borrow::Cow, vec::Vec};

use crate::{
    LeaseAllocRequest, LeaseTerms, ResourceId, ResourceType, constraints, lease_intent,
    read::{Decoded, Reader, invalid_args},
    tag, tried,
    write::Writer,
};

impl LeaseAllocRequest {
    /// Reads the payload of a LEASE_ALLOC.
    ///
    /// # Errors
    /// If the payload is no valid LEASE_ALLOC.
    pub fn parse(payload: &[u8]) -> Decoded<Self> {
        let mut r = Reader::new(payload, 0);
        let request = read(&mut r)?;
        r.finish()?;
        Ok(request)
    }

    /// The payload of a LEASE_ALLOC: equal requests have equal bytes.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        let mut w = Writer::new();
        write(&mut w, self);
        w.payload().unwrap_or_default()
    }
}

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<LeaseAllocRequest> {
    let resource_type = ResourceType::from_code(r.u16("resource_type")?);
    let resource_id = Some(ResourceId(r.u128("resource_id")?)).filter(|id| id.0 != 0);
    let capacity = nonzero(r, "capacity", Reader::u64)?;
    let lease_secs = nonzero(r, "lease_secs", Reader::u32)?;
    let grace_secs = r.u32("grace_secs")?;
    let params = r.area("params")?;
    let plain = LeaseAllocRequest {
        resource_id,
        grace_secs,
        intent: lease_intent::find(&params)?,
        transport: constraints::find_transport(&params)?.unwrap_or_default(),
        rotate_on_renew: params.flag(tag::LEASE_ROTATE_ON_RENEW)?,
        request_token: constraints::find_request_token(&params)?,
        follows_redirect: params.flag(tag::LEASE_REDIRECT)?,
        tried: tried::find(&params)?,
        explain: params.flag(tag::LEASE_EXPLAIN)?,
        ..LeaseAllocRequest::new(resource_type, capacity, lease_secs)
    };
    let terms = LeaseTerms::find_all(&params)?;
    Ok(terms.into_iter().fold(plain, LeaseAllocRequest::with_terms))
}

fn nonzero<'a, T: Default + PartialEq>(
    r: &mut Reader<'a>,
    field: &'static str,
    read: impl FnOnce(&mut Reader<'a>, &'static str) -> Decoded<T>,
) -> Decoded<T> {
    let at = r.offset();
    let value = read(r, field)?;
    if value == T::default() {
        return Err(invalid_args(at, field, "at least 1", Cow::Borrowed("0")));
    }
    Ok(value)
}

pub(crate) fn write(w: &mut Writer, request: &LeaseAllocRequest) {
    w.u16(request.resource_type().code());
    w.u128(request.resource_id.map_or(0, |id| id.0));
    w.u64(request.capacity)
        .u32(request.lease_secs)
        .u32(request.grace_secs);
    w.area(|w| {
        // In this order, equal requests have equal bytes.
        w.ascending(|w| write_params(w, request));
    });
}

fn write_params(w: &mut Writer, request: &LeaseAllocRequest) {
    let stated = core::iter::once(&request.terms).chain(&request.foreign);
    stated.for_each(|terms| terms.write(w));
    lease_intent::write(w, &request.intent);
    let transport = request.transport;
    constraints::write_transport(w, (transport != Default::default()).then_some(transport));
    constraints::write_rotate_on_renew(w, request.rotate_on_renew);
    constraints::write_request_token(w, request.request_token);
    w.tlv_if(tag::LEASE_REDIRECT, request.follows_redirect.then_some([1]));
    tried::write(w, &request.tried);
    w.tlv_if(tag::LEASE_EXPLAIN, request.explain.then_some([1]));
}
