//! Every metric of a scheduler: its name, its meaning and where its samples come from. docs/metrics.md is made of this list.
//!
//! Labels name kinds and words of this program: neither nodes nor tenants can make their number grow.

use fabricbios_http::metrics::{Metric, Value};

use super::Moment;
use crate::figures::NOT_TAKEN;

/// All metrics, in the order of the page.
pub(super) const METRICS: &[Metric<Moment>] = fabricbios_http::metrics! {
    "fabricbios_scheduler" "", Gauge, &["scheduler", "fabric", "version"],
        "Always 1: the id of the scheduler, its fabric and the version of its program.": |it, take| {
            let about = &it.about;
            take(&[&about.scheduler_id, &about.fabric, about.version], Value::Count(1));
        };
    "fabricbios_scheduler_policy" "", Gauge, &["policy", "from"],
        "Always 1: the placement policy, and whether it is from the `flag` or from `etcd`.": |it, take| {
            let health = &it.of_owner.health;
            take(&[&health.policy, health.policy_from], Value::Count(1));
        };
    "fabricbios_scheduler_ready" "", Gauge, &[],
        "1 while a node reports, so that clients can be redirected.": |it, take| {
            take(&[], Value::flag(it.of_owner.health.ready));
        };
    "fabricbios_scheduler_view_complete" "", Gauge, &[],
        "1 while all members are known and each has reported all that decides about a lease: only then is anything refused for good.": |it, take| {
            take(&[], Value::flag(it.of_owner.health.view_complete));
        };
    "fabricbios_scheduler_members_known" "", Gauge, &[],
        "1 while etcd says who belongs to the fabric.": |it, take| {
            take(&[], Value::flag(it.of_owner.health.members_known));
        };
    "fabricbios_scheduler_certificate_expiry_timestamp" "seconds", Gauge, &[],
        "When the scheduler's certificate ends, in seconds since 1970; absent if it cannot be read.": |it, take| {
            if let Some(at) = it.certificate_ends {
                take(&[], Value::Count(at));
            }
        };
    "fabricbios_fleet_nodes" "", Gauge, &["state"],
        "Nodes: `whole` report and have told all that decides about a lease, `untold` report and have not, and `away` are members that do not report.": |it, take| {
            let fleet = &it.of_owner.fleet;
            for (state, count) in [("whole", fleet.whole), ("untold", fleet.untold), ("away", fleet.away)] {
                take(&[state], Value::Count(count));
            }
        };
    "fabricbios_fleet_nodes_by_health" "", Gauge, &["health"],
        "Nodes that report, by the worst health of the node and its resources: `ok`, `degraded`, `fenced`.": |it, take| {
            for (health, count) in ["ok", "degraded", "fenced"].iter().zip(it.of_owner.fleet.by_health) {
                take(&[health], Value::Count(count));
            }
        };
    "fabricbios_fleet_nodes_late" "", Gauge, &[],
        "Nodes that are connected and have reported nothing for 70 s; they report every 30 s at least.": |it, take| {
            take(&[], Value::Count(it.of_owner.fleet.late));
        };
    "fabricbios_fleet_oldest_report_age" "seconds", Gauge, &[],
        "The age of the last report of the node that reported the longest ago; absent if none reports.": |it, take| {
            if let Some(age) = it.of_owner.fleet.oldest_report {
                take(&[], Value::Number(age.as_secs_f64()));
            }
        };
    "fabricbios_fleet_leases" "", Gauge, &[],
        "Leases that nodes report, also those that are over and not clean yet.": |it, take| {
            take(&[], Value::Count(it.of_owner.fleet.leases));
        };
    "fabricbios_fleet_resources" "", Gauge, &["kind"],
        "Resources on offer at the nodes that report.": |it, take| {
            for (kind, of) in &it.of_owner.fleet.kinds {
                take(&[&kind.to_string()], Value::Count(of.resources));
            }
        };
    "fabricbios_fleet_capacity" "", Gauge, &["kind"],
        "The whole of the resources on offer at the nodes that report, in the unit of the kind.": |it, take| {
            for (kind, of) in &it.of_owner.fleet.kinds {
                take(&[&kind.to_string()], Value::Count(of.capacity));
            }
        };
    "fabricbios_fleet_available" "", Gauge, &["kind"],
        "What one more lease could get of each of these resources, added up, in the unit of the kind.": |it, take| {
            for (kind, of) in &it.of_owner.fleet.kinds {
                take(&[&kind.to_string()], Value::Count(of.available));
            }
        };
    "fabricbios_scheduler_redirects" "", Counter, &["of"],
        "Answers that name nodes: `placement` of a new lease, `lease` that there is, `explained` for `--explain`.": |it, take| {
            let tally = &it.of_owner.tally;
            for (of, count) in [("placement", tally.placed), ("lease", tally.found), ("explained", tally.explained)] {
                take(&[of], Value::Count(count));
            }
        };
    "fabricbios_scheduler_refusals" "", Counter, &["class", "code"],
        "Requests refused by the scheduler; those of the nodes are theirs.": |it, take| {
            for ((class, code), count) in &it.of_owner.tally.refusals {
                take(&[class, code], Value::Count(*count));
            }
        };
    "fabricbios_scheduler_decision" "seconds", Histogram, &[],
        "How long it took to choose nodes for a lease, or to refuse it.": |it, take| {
            take(&[], Value::Spans(&it.of_owner.tally.decisions));
        };
    "fabricbios_scheduler_reports" "", Counter, &["of"],
        "Reports taken: of `inventory` and of `leases`.": |it, take| {
            for (of, count) in ["inventory", "leases"].iter().zip(it.of_owner.tally.reports) {
                take(&[of], Value::Count(count));
            }
        };
    "fabricbios_scheduler_reports_not_taken" "", Counter, &["why"],
        "Reports refused: `other-node`, `sequence`, `leases`, `later-connection`, `too-large`. The log names the node.": |it, take| {
            // Also those that never were: a counter that begins at its first report has no increase.
            for (why, count) in NOT_TAKEN.iter().zip(it.of_owner.tally.not_taken) {
                take(&[why], Value::Count(count));
            }
        };
    "fabricbios_scheduler_queue_depth" "", Gauge, &["queue"],
        "What waits for the task that owns the view: `reports` of nodes, `requests` of clients.": |it, take| {
            for (queue, (depth, _)) in ["reports", "requests"].iter().zip(it.queues) {
                take(&[queue], Value::Count(depth as u64));
            }
        };
    "fabricbios_scheduler_turned_away" "", Counter, &["queue"],
        "Reports and requests refused because too many waited.": |it, take| {
            for (queue, (_, count)) in ["reports", "requests"].iter().zip(it.queues) {
                take(&[queue], Value::Count(count));
            }
        };
    "fabricbios_scheduler_connections" "", Gauge, &[],
        "Open connections of nodes and clients.": |it, take| {
            take(&[], Value::Count(it.connections));
        };
    "fabricbios_scheduler_etcd_up" "", Gauge, &[],
        "1 while etcd answers; absent without etcd.": |it, take| {
            match it.of_owner.health.etcd {
                "none" => {}
                etcd => take(&[], Value::flag(etcd == "answers")),
            }
        };
    "fabricbios_scheduler_etcd_call" "seconds", Histogram, &["call"],
        "How long calls of etcd took, whatever came of them.": |it, take| {
            for (call, of) in &it.calls {
                take(&[call], Value::Spans(&of.times));
            }
        };
    "fabricbios_scheduler_etcd_failed" "", Counter, &["call", "why"],
        "Calls of etcd that failed: `silent` within 8 s, connection `lost` or no leader, `refused`.": |it, take| {
            for (call, of) in &it.calls {
                for (why, count) in &of.failed {
                    take(&[call, why], Value::Count(*count));
                }
            }
        };
    "fabricbios_log_lines_dropped" "", Counter, &[],
        "Lines of the log that were dropped because nobody read it fast enough.": |it, take| {
            take(&[], Value::Count(it.log_lines_dropped));
        };
    "process_open_fds" "", Gauge, &[],
        "Open file descriptors of the scheduler.": |it, take| {
            take(&[], Value::Count(it.descriptors));
        };
    "process_max_fds" "", Gauge, &[],
        "The most that it may have open.": |it, take| {
            take(&[], Value::Count(it.descriptors_max));
        };
    "process_resident_memory" "bytes", Gauge, &[],
        "Memory of the scheduler that is resident.": |it, take| {
            if let Some(process) = it.process {
                take(&[], Value::Count(process.resident_bytes));
            }
        };
    "process_cpu" "seconds", Counter, &[],
        "Time of processors that the scheduler has used.": |it, take| {
            if let Some(process) = it.process {
                take(&[], Value::Number(process.cpu.as_secs_f64()));
            }
        };
};
