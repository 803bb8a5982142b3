//! A lease as text for people. Keys and secrets are only in the JSON.

use std::fmt;

use fabricbios_client::AffinityWords;
use fabricbios_wire::{Effective, LeaseEnd, LeaseInfo, LeaseIntent, LeasePhase, ProofStep, Size};

use crate::{
    kinds::{self, Face},
    output::{self, one_line},
    time_text,
};

/// The whole lease, with a line for each part.
pub(crate) fn full(info: &LeaseInfo) -> String {
    lines(info, None)
}

/// As [`full`], and the node of the lease, if a scheduler has named it.
pub(crate) fn granted(info: &LeaseInfo, node: Option<String>) -> String {
    let node = node.map(|node| {
        row(
            "node",
            format!("{node}: --node and --node-id for this lease"),
        )
    });
    lines(info, node)
}

fn lines(info: &LeaseInfo, last: Option<Vec<String>>) -> String {
    let mut rows = vec![
        row("lease", info.lease_id.to_string()),
        row(
            "state",
            format!("{}, generation {}", info.phase, info.generation.0),
        ),
        row(
            "resource",
            format!("{} {}", info.resource_type(), info.resource_id),
        ),
        row("capacity", info.resource_type().amount(info.capacity)),
        row("expires", expiry(info)),
    ];
    if let Some(tenant) = &info.tenant {
        rows.insert(1, row("tenant", one_line(tenant)));
    }
    if let Some(end) = &info.end {
        rows.push(row("ended", time_text::utc(end.at_unix_ms)));
        rows.push(row("cause", cause(end)));
    }
    if info.renewable_at_unix_ms != 0 {
        rows.push(row(
            "renewable",
            format!("from {}", time_text::utc(info.renewable_at_unix_ms)),
        ));
    }
    if info.grace_ends_unix_ms != 0 {
        rows.push(row(
            "contents",
            format!("kept until {}", time_text::utc(info.grace_ends_unix_ms)),
        ));
    }
    let face = kinds::face(info.resource_type());
    rows.push(row("enforced", effective(face, &info.effective)));
    let best_effort = face.best_effort(&info.effective);
    rows.extend(best_effort.map(|what| row("best effort", what.to_owned())));
    if let Some(stated) = &info.intent {
        rows.push(row("intent", intent(stated)));
    }
    if let Some(limits) = info.binding.limits {
        let unit = face.unit();
        let limits = format!("{} {unit} from {}", limits.length, limits.offset);
        rows.push(row("limits", limits));
    }
    if let Some(endpoint) = info.binding.udp_endpoint {
        rows.push(row("udp", format!("{endpoint}; only --json shows the key")));
    }
    rows.extend(face.rows(info));
    if info.phase == LeasePhase::Active {
        rows.extend(face.how_to_use(info).map(|how| row("use", how)));
    }
    rows.extend(last);
    let end = info.end.as_deref();
    let steps_of = |heading, of: fn(&LeaseEnd) -> &[ProofStep]| {
        end.map_or(String::new(), |end| steps(heading, of(end)))
    };
    output::table(&rows)
        + &steps_of("STEP OF THE CUT", |end| &end.proof)
        + &steps_of("STEP OF THE CLEANING", |end| &end.cleaning)
}

/// The cause of an end, and who ended the lease.
pub(crate) fn cause(end: &LeaseEnd) -> String {
    match &end.by {
        Some(by) => format!("{}, by operator {}", end.cause, one_line(by)),
        None => end.cause.to_string(),
    }
}

/// Steps with their results, one line each.
fn steps(heading: &'static str, steps: &[ProofStep]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let headings = [heading, "MS", "FOUND"];
    let step = |it: &ProofStep| {
        vec![
            one_line(&it.step),
            format!("{:.2}", f64::from(it.took_us) / 1e3),
            if it.found.is_empty() {
                "ok".to_owned()
            } else {
                one_line(&it.found)
            },
        ]
    };
    "\n".to_owned() + &output::headed_table(headings, steps.iter().map(step))
}

/// As [`full`], and whether the old keys still work.
pub(crate) fn rotated(info: &LeaseInfo, overlap_ms: u32) -> String {
    let old = match (info.binding.nvmeof().is_some(), overlap_ms) {
        (true, _) => {
            "new; nobody connects with the old keys any more, and an open connection goes on"
        }
        (false, 0) => "new; the old keys open nothing any more",
        (false, _) => {
            "new; the old keys go on working for the time that was asked for, or until the term ends"
        }
    };
    lines(info, Some(row("keys", old.to_owned())))
}

/// A column of [`list`]: its heading, whether it is shown, and its text for a lease.
type Column = (&'static str, bool, fn(&LeaseInfo) -> String);

/// A line for each lease, at most 120 characters long. TENANT and CAUSE are shown if any lease has them, and RESOURCE if
/// no lease has either: all three do not fit.
pub(crate) fn list(leases: &[LeaseInfo]) -> String {
    let tenants = leases.iter().any(|info| info.tenant.is_some());
    let causes = leases.iter().any(|info| info.end.is_some());
    let columns: [Column; 8] = [
        ("LEASE", true, |info| info.lease_id.to_string()),
        ("TENANT", tenants, short_tenant),
        ("STATE", true, |info| info.phase.to_string()),
        ("TYPE", true, |info| info.resource_type().to_string()),
        ("CAPACITY", true, |info| {
            info.resource_type().amount(info.capacity)
        }),
        ("END", true, end),
        ("CAUSE", causes, |info| {
            let end = info.end.as_ref();
            end.map(|end| end.cause.to_string()).unwrap_or_default()
        }),
        ("RESOURCE", !tenants && !causes, |info| {
            info.resource_id.to_string()
        }),
    ];
    let shown = || columns.iter().filter(|(_, shown, _)| *shown);
    let headings = shown().map(|(heading, ..)| (*heading).to_owned()).collect();
    let line = |info| shown().map(|(.., cell)| cell(info)).collect();
    let rows = std::iter::once(headings).chain(leases.iter().map(line));
    output::table(&rows.collect::<Vec<_>>())
}

/// At most 18 characters.
fn short_tenant(info: &LeaseInfo) -> String {
    let name = one_line(info.tenant.as_deref().unwrap_or_default());
    match name.char_indices().nth(18) {
        None => name,
        Some(_) => name.chars().take(17).chain(['…']).collect(),
    }
}

/// The time left, or the time of the end.
fn end(info: &LeaseInfo) -> String {
    match (info.phase, &info.end) {
        (LeasePhase::Binding | LeasePhase::Active, _) => {
            format!("in {}", time_text::span(info.remaining_ms))
        }
        (_, Some(end)) => time_text::utc(end.at_unix_ms),
        _ => time_text::utc(info.expires_at_unix_ms),
    }
}

fn expiry(info: &LeaseInfo) -> String {
    let at = time_text::utc(info.expires_at_unix_ms);
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active => {
            format!("in {} ({at})", time_text::span(info.remaining_ms))
        }
        _ => format!("over ({at})"),
    }
}

fn effective(face: &dyn Face, it: &Effective) -> String {
    let of_all = [
        named("transport", it.transport),
        it.rotate_on_renew.then(|| "rotate on renew".to_owned()),
    ];
    let parts = of_all.into_iter().chain(face.enforced(it));
    let parts: Vec<String> = parts.flatten().collect();
    match parts.is_empty() {
        true => "the term".to_owned(),
        false => parts.join(", "),
    }
}

/// A term with its value.
pub(crate) fn named(name: &str, value: Option<impl fmt::Display>) -> Option<String> {
    value.map(|value| format!("{name} {value}"))
}

fn intent(stated: &LeaseIntent) -> String {
    let kv_cache = stated.kv_cache.map(|it| match it.block_bytes {
        0 => format!("KV cache {}", it.tier),
        bytes => format!("KV cache {}, blocks of {}", it.tier, Size(bytes.into())),
    });
    let affinity = |it| one_line(&AffinityWords::from(it).to_string());
    let affinities = stated.affinities.iter().map(affinity);
    let parts: Vec<String> = kv_cache.into_iter().chain(affinities).collect();
    parts.join(", ")
}

/// A row of the text.
pub(crate) fn row(what: &str, value: String) -> Vec<String> {
    vec![what.to_owned(), value]
}
