//! Writes the table's notes as log lines with fields.

use std::time::Duration;

use fabricbios_lease::{Condition, CutTime, LeaseRecord, Note, ProofLine};
use fabricbios_log::LEASE;
use fabricbios_wire::{
    CpuExecutionMode, CpuIsolationClass, CpuPartition, Effective, EndCause, GpuExclusivityClass,
    GpuExecutionMode, LeaseError, LeaseIntent, LeasePhase, ProofStep, ResourceId, Transport,
};
use tracing::field::{DisplayValue, display};

/// Writes a line for the condition of a resource. The line names the condition as inventories do.
pub(crate) fn log_condition(resource_id: ResourceId, condition: &Condition) {
    match condition {
        Condition::Good => tracing::info!(%resource_id, "the resource is well again"),
        Condition::Degraded(why) | Condition::Partial { why, .. } | Condition::Lost { why, .. } => {
            tracing::warn!(%resource_id, why, "degraded");
        }
        Condition::Unavailable(why) => {
            tracing::warn!(%resource_id, why, "degraded: nothing is granted of this resource until it is back");
        }
        Condition::Failed(why) => {
            tracing::error!(%resource_id, why, "FENCED: the resource has failed");
        }
    }
}

/// Writes one line. The normal life of a lease has one line at level INFO, at its end; its other moments are of level
/// DEBUG.
pub(crate) fn log(note: &Note) {
    match note {
        Note::Granted {
            lease_id,
            tenant,
            resource_id,
            wanted,
            effective,
            intent,
            policy,
        } => {
            tracing::debug!(
                target: LEASE, %lease_id, %tenant, %resource_id, %wanted, requested = %terms(&wanted.classes), effective = %terms(effective),
                intent = intent.as_deref().map(|intent| tracing::field::display(stated(intent))), %policy, "granted"
            );
        }
        Note::Adopted { lease_id, state } => {
            tracing::info!(%lease_id, ?state, "adopted: a lease of an earlier run goes on");
        }
        Note::Displaced {
            lease_id,
            resource_id,
            placement,
        } => {
            tracing::error!(%lease_id, %resource_id, ?placement, "the part of this lease of an earlier run is gone: the lease is over");
        }
        Note::Refused {
            tenant,
            wanted,
            lease_id,
            refusal,
        } => {
            let wanted = wanted.as_ref();
            tracing::info!(
                %tenant,
                lease_id = lease_id.map(tracing::field::display),
                wanted = wanted.map(tracing::field::display),
                requested = wanted.map(|w| tracing::field::display(terms(&w.classes))),
                effective = "none",
                policy = policy_of(refusal.error),
                class = %refusal.class,
                code = refusal.error.name(),
                why = refusal.message,
                "refused"
            );
        }
        Note::NotBound {
            lease_id,
            tenant,
            error,
            ..
        } => {
            tracing::warn!(%lease_id, %tenant, %error, "no binding could be made");
        }
        Note::Cut {
            binding_id,
            cause,
            time,
            proof,
        } => {
            tracing::debug!(
                target: LEASE, lease_id = %binding_id.lease_id, generation = binding_id.generation.0, %cause,
                took_us = micros(time.took), after_deadline_us = time.after_deadline.map(micros), %proof, "cut"
            );
        }
        Note::Ended { phase, record, cut } => log_ended(*phase, record, *cut),
        Note::Fenced {
            resource_id,
            lease_id,
            reason,
            ..
        } => {
            tracing::error!(%resource_id, %lease_id, %reason, "FENCED");
        }
        Note::Unfenced { resource_id, by } => tracing::warn!(%resource_id, %by, "fence cleared"),
        Note::Rotated {
            binding_id,
            overlap,
        } => {
            tracing::debug!(target: LEASE, lease_id = %binding_id.lease_id, overlap_ms = u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX), "keys rotated");
        }
        Note::NotExtended(binding_id, error) => {
            tracing::warn!(lease_id = %binding_id.lease_id, generation = binding_id.generation.0, %error, "deadline not extended");
        }
        Note::KeyNotRetired(binding_id, error) => {
            tracing::error!(lease_id = %binding_id.lease_id, %error, "old key not retired; cutting");
        }
        Note::Broken {
            invariant,
            lease_id,
            resource_id,
            detail,
        } => {
            tracing::error!(%invariant, %lease_id, %resource_id, detail, "a mistake in this program was found");
        }
        Note::Stale(binding_id, what) => {
            tracing::debug!(lease_id = %binding_id.lease_id, generation = binding_id.generation.0, what, "stale");
        }
    }
}

/// Writes the line about the whole life of a lease: a warning if it did not end as its tenant or an operator wanted.
fn log_ended(phase: LeasePhase, record: &LeaseRecord, cut: Option<CutTime>) {
    let end = record.end.as_deref();
    let cause = end.map(|end| end.cause);
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                target: LEASE,
                lease_id = %record.lease_id,
                tenant = %record.tenant,
                resource_id = %record.resource_id,
                kind = %record.resource_type,
                capacity = record.capacity,
                term_secs = record.term_secs,
                lived_ms = end.map(|end| end.at_unix_ms.saturating_sub(record.granted_at_unix_ms)),
                cause = cause.map(tracing::field::display),
                by = end.and_then(|end| end.by.as_deref()),
                took_us = cut.map(|it| micros(it.took)),
                after_deadline_us = cut.and_then(|it| it.after_deadline).map(micros),
                proof = end.and_then(|end| line_of(&end.proof)),
                cleaned = end.and_then(|end| line_of(&end.cleaning)),
                "lease ended"
            )
        };
    }
    use EndCause as C;
    match cause {
        _ if phase == LeasePhase::Fenced => line!(warn),
        Some(C::Expired | C::Freed | C::Revoked | C::NodeStopped) => line!(info),
        _ => line!(warn),
    }
}

fn line_of(steps: &[ProofStep]) -> Option<DisplayValue<ProofLine<'_>>> {
    (!steps.is_empty()).then(|| display(ProofLine(steps)))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The stated terms, by their names on the wire.
fn terms(stated: &Effective) -> String {
    let Effective {
        cpu_isolation,
        cpu_execution_mode,
        cpu_execution_width,
        cpu_partition,
        gpu_exclusivity,
        gpu_execution_mode,
        gpu_compute_slices,
        transport,
        rotate_on_renew,
        read_only,
        mutual_auth,
        net_rate,
    } = stated;
    let width = cpu_execution_width.map(|it| format!("width {it}"));
    let slices = gpu_compute_slices.map(|it| format!("{it} compute slices"));
    let rate = net_rate.map(|it| format!("rate {it}"));
    let names = [
        cpu_isolation.map(CpuIsolationClass::name),
        cpu_execution_mode.map(CpuExecutionMode::name),
        width.as_deref(),
        cpu_partition.map(CpuPartition::name),
        gpu_exclusivity.map(GpuExclusivityClass::name),
        gpu_execution_mode.map(GpuExecutionMode::name),
        slices.as_deref(),
        transport.map(Transport::name),
        rotate_on_renew.then_some("rotate_on_renew"),
        read_only.then_some("read_only"),
        mutual_auth.then_some("mutual_auth"),
        rate.as_deref(),
    ];
    let names: Vec<&str> = names.into_iter().flatten().collect();
    match names.is_empty() {
        true => "default".into(),
        false => names.join(","),
    }
}

/// A tenant's statement about its use of the lease. Bytes that are no text are escaped.
fn stated(intent: &LeaseIntent) -> String {
    let cache = intent.kv_cache.iter();
    let cache = cache.map(|it| format!("kv_cache {} {}", it.tier, it.block_bytes));
    let near = intent.affinities.iter().map(|it| {
        let (category, strength, form) = (it.category, it.strength, it.target_type);
        let target = it.target.escape_ascii();
        format!("affinity {category}/{strength}/{form} {target}")
    });
    cache.chain(near).collect::<Vec<_>>().join(",")
}

/// The rule behind a refusal.
fn policy_of(error: LeaseError) -> &'static str {
    match error {
        LeaseError::InvalidIntent => "request validation",
        LeaseError::InvalidArgs => "the operator's limits and what the resource can do",
        LeaseError::CapacityExceeded => "capacity, never over-committed",
        LeaseError::NotFound => "a lease answers only to its tenant",
        LeaseError::NotPermitted => "role of the identity",
        LeaseError::RenewTooEarly => "renewal window, last 20 % of the term",
        LeaseError::Expired | LeaseError::Revoked => "the lease is over",
        LeaseError::Fenced => "nothing is granted on a fenced resource",
        LeaseError::ResourceBusy => "in use at the moment",
        _ => "node state",
    }
}
