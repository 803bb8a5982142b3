//! The end of a lease, and the proof of its cut: TLVs 0x0C01 to 0x0C04 of a lease (layout ours).

use alloc::{string::String, sync::Arc, vec::Vec};

use crate::{
    CLEANING_STEPS_MAX, EndCause, LeaseEnd, PROOF_FOUND_BYTES_MAX, PROOF_STEP_BYTES_MAX,
    PROOF_STEPS_MAX, ProofStep, TENANT_BYTES_MAX,
    read::Decoded,
    tag,
    tlv::{Tlv, TlvArea},
    write::{Writer, cut},
};

pub(crate) fn find_tenant(area: &TlvArea<'_>) -> Decoded<Option<String>> {
    let tenant = area.read(tag::LEASE_TENANT, |tlv| tlv.text(0, TENANT_BYTES_MAX))?;
    Ok(tenant.map(String::from))
}

/// Reads the end and its steps. Steps of a lease without an end are skipped.
pub(crate) fn find(area: &TlvArea<'_>) -> Decoded<Option<Arc<LeaseEnd>>> {
    let Some(mut end) = area.read(tag::LEASE_END, read_end)? else {
        return Ok(None);
    };
    let steps = area.find_all(tag::LEASE_PROOF_STEP, PROOF_STEPS_MAX)?;
    end.proof = steps.iter().map(read_step).collect::<Decoded<_>>()?;
    let steps = area.find_all(tag::LEASE_CLEANING_STEP, CLEANING_STEPS_MAX)?;
    end.cleaning = steps.iter().map(read_step).collect::<Decoded<_>>()?;
    Ok(Some(Arc::new(end)))
}

/// `u64` milliseconds of wall clock, `u8` cause, UTF-8 operator.
fn read_end(tlv: &Tlv<'_>) -> Decoded<LeaseEnd> {
    let Some((at, &[cause, ..])) = tlv.value.split_first_chunk() else {
        return Err(tlv.wrong_length("at least 9 bytes".into()));
    };
    let by = tlv.text(9, TENANT_BYTES_MAX)?;
    Ok(LeaseEnd {
        at_unix_ms: u64::from_be_bytes(*at),
        cause: EndCause::from_byte(cause)
            .ok_or_else(|| tlv.unknown_value(8, "cause", "0 to 7", cause))?,
        by: (!by.is_empty()).then(|| String::from(by)),
        proof: Vec::new(),
        cleaning: Vec::new(),
    })
}

/// `u32` microseconds, `u8` length of the name, the name, and the finding.
fn read_step(tlv: &Tlv<'_>) -> Decoded<ProofStep> {
    let Some((took, &[length, ref rest @ ..])) = tlv.value.split_first_chunk() else {
        return Err(tlv.wrong_length("at least 5 bytes".into()));
    };
    let length = usize::from(length);
    if length > rest.len().min(PROOF_STEP_BYTES_MAX) {
        return Err(tlv.unknown_value(4, "length of the name", "one that fits", length));
    }
    let found = tlv.text(5 + length, PROOF_FOUND_BYTES_MAX)?;
    let name = tlv.text_within(5, length)?;
    Ok(ProofStep {
        step: String::from(name).into(),
        took_us: u32::from_be_bytes(*took),
        found: String::from(found),
    })
}

pub(crate) fn write(w: &mut Writer, tenant: Option<&str>, end: Option<&LeaseEnd>) {
    if let Some(tenant) = tenant {
        w.tlv(tag::LEASE_TENANT, cut(tenant, TENANT_BYTES_MAX).as_bytes());
    }
    let Some(end) = end else { return };
    let mut value = end.at_unix_ms.to_be_bytes().to_vec();
    value.push(end.cause as u8);
    let by = end.by.as_deref().unwrap_or_default();
    value.extend(cut(by, TENANT_BYTES_MAX).as_bytes());
    w.tlv(tag::LEASE_END, &value);
    write_steps(w, tag::LEASE_PROOF_STEP, &end.proof, PROOF_STEPS_MAX);
    write_steps(
        w,
        tag::LEASE_CLEANING_STEP,
        &end.cleaning,
        CLEANING_STEPS_MAX,
    );
}

fn write_steps(w: &mut Writer, tag: u16, steps: &[ProofStep], max: usize) {
    for step in steps.iter().take(max) {
        let name = cut(&step.step, PROOF_STEP_BYTES_MAX);
        let mut value = step.took_us.to_be_bytes().to_vec();
        value.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        value.extend(name.as_bytes());
        value.extend(cut(&step.found, PROOF_FOUND_BYTES_MAX).as_bytes());
        w.tlv(tag, &value);
    }
}
