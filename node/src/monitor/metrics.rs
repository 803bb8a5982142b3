//! Every metric of a node: its name, its meaning and where its samples come from. docs/metrics.md is made of this list.
//!
//! Labels name kinds, resources of the operator, and words of this program. No tenant can make their number grow.

use std::collections::BTreeMap;

use fabricbios_http::metrics::{Metric, Value};
use fabricbios_lease::{Availability, StateFigures};
use fabricbios_wire::{DataStatus, ResourceId, ResourceType, health};

use crate::{
    driver::tally::OfResource,
    monitor::{Figures, health::name},
};

const RESOURCE: &[&str] = &["kind", "resource"];

/// All metrics, in the order of the page.
pub(super) const METRICS: &[Metric<Figures>] = fabricbios_http::metrics! {
    "fabricbios_node" "", Gauge, &["node", "fabric", "version"],
        "Always 1: the id of the node, its fabric and the version of its program.": |it, take| {
            let version = env!("CARGO_PKG_VERSION");
            take(&[&it.machine.node_id.to_string(), &it.machine.fabric, version], Value::Count(1));
        };
    "fabricbios_node_draining" "", Gauge, &[],
        "1 while the node goes down and grants nothing.": |it, take| {
            take(&[], Value::flag(it.driver.is_draining));
        };
    "fabricbios_node_health" "", Gauge, &[],
        "The worst health of the node and its resources, as the inventory says it: 0 well, 1 degraded, 2 fenced.": |it, take| {
            take(&[], Value::Count(it.driver.inventory.health.into()));
        };
    "fabricbios_certificate_expiry_timestamp" "seconds", Gauge, &[],
        "When the node's certificate ends, in seconds since 1970; absent if it cannot be read.": |it, take| {
            if let Some(at) = it.machine.certificate_ends {
                take(&[], Value::Count(at));
            }
        };
    "fabricbios_resource_capacity" "", Gauge, RESOURCE,
        "The whole of a resource, in the unit of its kind.": |it, take| {
            of_each(it, |labels, of| take(labels, Value::Count(of.capacity)));
        };
    "fabricbios_resource_available" "", Gauge, RESOURCE,
        "What a lease could still get of a resource, in the unit of its kind.": |it, take| {
            of_each(it, |labels, of| take(labels, Value::Count(of.available)));
        };
    "fabricbios_resource_health" "", Gauge, RESOURCE,
        "0 well, 1 degraded, 2 fenced: nothing is granted until an operator has cleared it.": |it, take| {
            of_each(it, |labels, of| {
                let health = match (of.fenced, is_degraded(it, of)) {
                    (true, _) => health::FENCED,
                    (false, true) => health::DEGRADED,
                    (false, false) => health::OK,
                };
                take(labels, Value::Count(health.into()));
            });
        };
    "fabricbios_resource_fenced_part" "", Gauge, RESOURCE,
        "What fenced leases hold of a resource of which the rest is granted, in the unit of its kind.": |it, take| {
            of_each(it, |labels, of| take(labels, Value::Count(of.fenced_part)));
        };
    "fabricbios_leases" "", Gauge, &["kind", "resource", "state"],
        "Leases by state; those that are over and clean do not count.": |it, take| {
            of_each_state(it, |labels, of| take(labels, Value::Count(of.leases)));
        };
    "fabricbios_leases_above_bound" "", Gauge, &["kind", "resource", "state"],
        "Leases whose cut takes longer than its limit (cut-within-ms), before that fences; those that wait behind other cuts \
         count too. Only for the state cutting.": |it, take| {
            of_each_state(it, |labels, of| {
                if let Some(above) = of.above_bound {
                    take(labels, Value::Count(above));
                }
            });
        };
    "fabricbios_lease_state" "seconds", Histogram, &["kind", "resource", "state"],
        "How long leases stayed in a state that they have left; releasing is the scrub.": |it, take| {
            of_each_state(it, |labels, of| take(labels, Value::Spans(&of.stays)));
        };
    "fabricbios_grants" "", Counter, RESOURCE,
        "Leases granted: in the journal, confirmed by their store, and answered.": |it, take| {
            of_each_count(it, |labels, of| take(labels, Value::Count(of.grants)));
        };
    "fabricbios_grants_failed" "", Counter, RESOURCE,
        "Bindings and keys that could not be made, by a fault of the node.": |it, take| {
            of_each_count(it, |labels, of| take(labels, Value::Count(of.not_bound)));
        };
    "fabricbios_refusals" "", Counter, &["kind", "class", "code"],
        "Requests refused. The kind is empty where the request names none, or none that the node knows.": |it, take| {
            for ((kind, class, code), count) in &it.driver.tally.refusals {
                let kind = kind.map(|it| it.to_string()).unwrap_or_default();
                take(&[&kind, class, code], Value::Count(*count));
            }
        };
    "fabricbios_requests_turned_away" "", Counter, &["why"],
        "Requests refused before the node looked at them: `full`, too many wait; `tenant`, too many of the same tenant wait.": |it, take| {
            take(&["full"], Value::Count(it.driver.waiting.full));
            take(&["tenant"], Value::Count(it.driver.waiting.owner_full));
        };
    "fabricbios_cuts" "", Counter, &["kind", "resource", "cause"],
        "Proved ends of access, by cause.": |it, take| {
            of_each_count(it, |labels, of| {
                for (cause, count) in &of.cuts {
                    take(&[labels[0], labels[1], cause], Value::Count(*count));
                }
            });
        };
    "fabricbios_cut" "seconds", Histogram, RESOURCE,
        "From the decision that access ends to the proof that it has ended.": |it, take| {
            of_each_count(it, |labels, of| take(labels, Value::Spans(&of.cut_times)));
        };
    "fabricbios_cut_lateness" "seconds", Histogram, RESOURCE,
        "From the deadline of a lease to the proof that its access has ended.": |it, take| {
            of_each_count(it, |labels, of| take(labels, Value::Spans(&of.late)));
        };
    "fabricbios_cuts_unproved" "", Counter, RESOURCE,
        "Leases that are fenced because the end of their access is not proved.": |it, take| {
            of_each_count(it, |labels, of| take(labels, Value::Count(of.unproved)));
        };
    "fabricbios_fences" "", Counter, &["kind", "resource", "reason"],
        "Leases that could not be proved clean, by the step that failed.": |it, take| {
            of_each_count(it, |labels, of| {
                for (step, count) in &of.fences {
                    take(&[labels[0], labels[1], step], Value::Count(*count));
                }
            });
        };
    "fabricbios_cleaned" "bytes", Counter, RESOURCE,
        "Bytes that ended leases had and that are clean and free again, of kinds whose capacity is in bytes.": |it, take| {
            let is_in_bytes = |of: &&Availability| {
                matches!(of.resource_type, ResourceType::Mem | ResourceType::Block | ResourceType::Gpu)
            };
            for of in it.driver.offered.iter().filter(is_in_bytes) {
                let counts = it.driver.tally.resources.get(&of.resource_id);
                let name = name(&it.driver.inventory, of.resource_id);
                take(&[&of.resource_type.to_string(), &name], Value::Count(counts.map_or(0, |it| it.cleaned)));
            }
        };
    "fabricbios_udp_received" "bytes", Counter, &["kind"],
        "Bytes of datagrams that came in.": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                take(&[&kind.to_string()], Value::Count(of.received_bytes));
            }
        };
    "fabricbios_udp_sent" "bytes", Counter, &["kind"],
        "Bytes of replies.": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                take(&[&kind.to_string()], Value::Count(of.sent_bytes));
            }
        };
    "fabricbios_udp_datagrams" "", Counter, &["kind"],
        "Datagrams that came in.": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                take(&[&kind.to_string()], Value::Count(of.received));
            }
        };
    "fabricbios_udp_operations" "", Counter, &["kind", "status"],
        "Operations answered to holders of a key, by status.": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                for (status, count) in DataStatus::ALL.iter().zip(of.answered) {
                    take(&[&kind.to_string(), status.name()], Value::Count(count));
                }
            }
        };
    "fabricbios_udp_unauthenticated" "", Counter, &["kind"],
        "Replies to senders without a key.": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                take(&[&kind.to_string()], Value::Count(of.unauthenticated));
            }
        };
    "fabricbios_udp_dropped" "", Counter, &["kind", "why"],
        "Datagrams without a reply (`in`), and replies that the system did not send (`out`).": |it, take| {
            for (kind, of) in &it.machine.data_paths {
                take(&[&kind.to_string(), "in"], Value::Count(of.dropped));
                take(&[&kind.to_string(), "out"], Value::Count(of.unsent));
            }
        };
    "fabricbios_journal_writable" "", Gauge, &[],
        "0 while the journal cannot be written and nothing is granted.": |it, take| {
            take(&[], Value::flag(it.driver.unwritable.is_none()));
        };
    "fabricbios_journal_commit" "seconds", Histogram, &[],
        "How long a commit of the journal takes.": |it, take| {
            take(&[], Value::Spans(&it.driver.journal.commit_times));
        };
    "fabricbios_journal_commits_failed" "", Counter, &[],
        "Commits that failed; each is tried again.": |it, take| {
            take(&[], Value::Count(it.driver.journal.failed));
        };
    "fabricbios_journal_syncs" "", Counter, &[],
        "Calls of fdatasync for the journal.": |it, take| {
            take(&[], Value::Count(it.driver.journal.counts.syncs));
        };
    "fabricbios_journal_written" "bytes", Counter, &[],
        "Bytes written to the journal.": |it, take| {
            take(&[], Value::Count(it.driver.journal.counts.written_bytes));
        };
    "fabricbios_queue_depth" "", Gauge, &["queue"],
        "What waits: `notices`, `reports` of providers and `requests` for the driver, `changes` for the journal, and answers \
         `held` until their change is on the disk.": |it, take| {
            let (waiting, driver) = (&it.driver.waiting, &it.driver);
            for (queue, depth) in [
                ("notices", waiting.notices),
                ("reports", waiting.reports),
                ("requests", waiting.requests),
                ("changes", driver.journal.waiting),
                ("held", driver.held),
            ] {
                take(&[queue], Value::Count(depth as u64));
            }
        };
    "fabricbios_pool_jobs" "", Gauge, &["kind", "pool", "state"],
        "Jobs in the worker pools of a kind, `waiting` for a thread or `running`: `ending` access, `proving` it, `opening` \
         what waits for the network, `preparing` leases, `cleaning` after them.": |it, take| {
            for of in &it.driver.pools {
                let kind = of.kind.to_string();
                take(&[&kind, of.pool, "waiting"], Value::Count(of.waiting));
                take(&[&kind, of.pool, "running"], Value::Count(of.running));
            }
        };
    "fabricbios_helper_calls_in_flight" "", Gauge, &["call"],
        "Calls that may hang and have not answered, each made by a helper process of the daemon that `ps` shows as `fb-` \
         and the name. Calls that were given up do not count.": |it, take| {
            for (call, count) in &it.machine.helper_calls {
                take(&[call], Value::Count(*count));
            }
        };
    "fabricbios_log_lines_dropped" "", Counter, &[],
        "Lines of the log that were dropped because nobody read it fast enough.": |it, take| {
            take(&[], Value::Count(it.machine.log_lines_dropped));
        };
    "process_open_fds" "", Gauge, &[],
        "Open file descriptors of the daemon.": |it, take| {
            take(&[], Value::Count(it.machine.descriptors));
        };
    "process_max_fds" "", Gauge, &[],
        "The most that it may have open; some are kept for the ends of leases.": |it, take| {
            take(&[], Value::Count(it.machine.descriptors_max));
        };
    "process_resident_memory" "bytes", Gauge, &[],
        "Memory of the daemon that is resident.": |it, take| {
            if let Some(process) = it.machine.process {
                take(&[], Value::Count(process.resident_bytes));
            }
        };
    "process_cpu" "seconds", Counter, &[],
        "Time of processors that the daemon has used.": |it, take| {
            if let Some(process) = it.machine.process {
                take(&[], Value::Number(process.cpu.as_secs_f64()));
            }
        };
};

fn is_degraded(it: &Figures, of: &Availability) -> bool {
    super::health::reason(&it.driver.inventory, of.resource_id).is_some()
}

/// Calls `take` for each resource on offer, with its kind and name.
fn of_each(it: &Figures, mut take: impl FnMut(&[&str], &Availability)) {
    for of in &it.driver.offered {
        let name = name(&it.driver.inventory, of.resource_id);
        take(&[&of.resource_type.to_string(), &name], of);
    }
}

fn of_each_count(it: &Figures, mut take: impl FnMut(&[&str], &OfResource)) {
    let none = OfResource::default();
    of_each(it, |labels, of| {
        let counts = it.driver.tally.resources.get(&of.resource_id);
        take(labels, counts.unwrap_or(&none));
    });
}

fn of_each_state(it: &Figures, mut take: impl FnMut(&[&str], &StateFigures)) {
    let names: BTreeMap<ResourceId, String> = { it.driver.offered.iter() }
        .map(|of| (of.resource_id, name(&it.driver.inventory, of.resource_id)))
        .collect();
    for of in &it.driver.states {
        let name = names.get(&of.resource_id).map_or("", String::as_str);
        take(&[&of.resource_type.to_string(), name, of.state.name()], of);
    }
}
