//! The page for people with a browser. Everybody sees health and totals; who has the token of this run, which is in the
//! directory of `--run-dir`, sees nodes by id too. The macro escapes every text.

use std::sync::Arc;

use fabricbios_http::{
    Answer, Incoming, Request, StatusCode,
    page::{self, Asked, Words, guarded, in_use, prose, span, wide},
};
use maud::{Markup, html};

use super::{Moment, Monitor, OWNER_TIMEOUT};
use crate::{
    figures::{Listed, State},
    owner::now_unix_ms,
};

/// The most of a node's labels that is shown, in characters.
const LABELS_SHOWN: usize = 120;

pub(super) const WORDS: Words<3> = Words {
    title: "fabricBIOS scheduler",
    program: "scheduler",
    log_in: "Nodes by id are for an operator of this scheduler: where it was started with --run-dir DIR, `fabricctl page \
             --state-dir DIR`, as the user of the daemon on its machine, prints the address to log in at. Each start of the \
             scheduler makes a new one.",
    charts: [("Redirects", ""), ("Refusals", ""), ("Reports", "")],
};

pub(super) type Shell = page::Page<3>;

/// The counts of the charts.
pub(super) fn counts(moment: &Moment) -> [u64; 3] {
    let tally = &moment.of_owner.tally;
    [
        tally.placed + tally.found,
        tally.refusals.values().sum(),
        tally.reports.iter().sum(),
    ]
}

impl Monitor {
    /// Answers for the paths of the page.
    pub(super) async fn page(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        let path = request.uri().path();
        if !matches!(path, "/" | "/page.css" | "/page.js" | "/events") {
            return None;
        }
        let answer = match self.page.begin(request) {
            Asked::Answered(answer) => answer,
            Asked::Path { is_operator } if path == "/" => {
                let (status, live) = self.live(is_operator).await;
                self.page.overview(status, &live)
            }
            Asked::Path { is_operator } => {
                let monitor = Arc::clone(self);
                self.page.events(is_operator, move || {
                    let monitor = Arc::clone(&monitor);
                    async move { monitor.live(is_operator).await.1 }
                })
            }
        };
        Some(guarded(answer))
    }

    /// The part of the page that changes.
    async fn live(&self, is_operator: bool) -> (StatusCode, Markup) {
        match self.moment.get(OWNER_TIMEOUT).await {
            Some(moment) => {
                let live = live(&moment, &self.page.charts(), is_operator, now_unix_ms());
                (StatusCode::OK, live)
            }
            None => {
                let why = html! { p class="bad" { "The scheduler stops, or does not answer." } };
                (StatusCode::SERVICE_UNAVAILABLE, why)
            }
        }
    }
}

pub(super) fn live(
    moment: &Moment,
    charts: &Markup,
    is_operator: bool,
    now_unix_ms: u64,
) -> Markup {
    let fleet = &moment.of_owner.fleet;
    let row = |it: &Listed| node(it, now_unix_ms);
    html! {
        (state(moment))
        (kinds(moment))
        (refusals(moment))
        @if is_operator {
            (nodes("Away", "No member is away, as far as is known.", &fleet.lists[0], fleet.away, row))
            (nodes("Not well", "Every node that reports is well.", &fleet.lists[1], fleet.unwell, row))
            (charts)
            (nodes("The fullest", "No node reports.", &fleet.lists[2], fleet.whole + fleet.untold, row))
        } @else {
            (charts)
            p class="note" { (prose(WORDS.log_in)) }
        }
    }
}

fn state(moment: &Moment) -> Markup {
    let (health, fleet) = (&moment.of_owner.health, &moment.of_owner.fleet);
    let [ok, degraded, fenced] = fleet.by_health;
    let etcd = match health.etcd {
        "answers" => Some("good"),
        "lost" => Some("bad"),
        _ => None,
    };
    let failed: u64 = { moment.calls.values() }
        .flat_map(|it| it.failed.values())
        .sum();
    html! {
        dl {
            dt { "State" }
            dd {
                @if health.ready { span class="good" { "redirects clients" } }
                @else { span class="bad" { "no node reports" } }
                @if health.view_complete { ", knows all" } @else { ", does not know all" }
            }
            dt { "Scheduler" } dd class="id" { (moment.about.scheduler_id) }
            dt { "Fabric" } dd class="id" { (moment.about.fabric) }
            dt { "Version" } dd { (moment.about.version) }
            dt { "Nodes" }
            dd { ul class="states" {
                li { b { (fleet.whole + fleet.untold) } " report" }
                @for (count, what) in [
                    (fleet.untold, "have not told all"), (fleet.late, "late"), (fleet.away, "away"),
                ] { @if count > 0 { li class="bad" { b { (count) } " " (what) } } }
            } }
            dt { "Of these" }
            dd { ul class="states" {
                li { b { (ok) } " well" }
                @for (count, what) in [(degraded, "degraded"), (fenced, "fenced")] {
                    @if count > 0 { li class="bad" { b { (count) } " " (what) } }
                }
            } }
            dt { "Leases" } dd { (fleet.leases) }
            dt { "Connections" } dd { (moment.connections) }
            dt { "Policy" } dd { (health.policy) " (" (health.policy_from) ")" }
            dt { "etcd" }
            dd {
                span class=[etcd] { (health.etcd) }
                @if failed > 0 { ", " (failed) " calls failed since the start" }
            }
        }
        @if !health.why_not.is_empty() {
            h2 { "What is missing" }
            ul { @for why in &health.why_not { li { (prose(why)) } } }
        }
    }
}

fn kinds(moment: &Moment) -> Markup {
    html! {
        h2 { "Resources" }
        (wide("Resources", &html! {
            thead { tr {
                th scope="col" { "Kind" } th scope="col" class="number" { "Resources" } th scope="col" { "In use" }
                th scope="col" class="number" { "Available" } th scope="col" class="number" { "Capacity" }
            } }
            tbody { @for (kind, of) in &moment.of_owner.fleet.kinds { tr {
                th scope="row" { (kind) } td class="number" { (of.resources) }
                td { (in_use(kind, of.capacity, of.available)) }
                td class="number" { (kind.amount(of.available)) }
                td class="number" { (kind.amount(of.capacity)) }
            } } }
        }))
    }
}

fn refusals(moment: &Moment) -> Markup {
    let refusals = &moment.of_owner.tally.refusals;
    html! {
        h2 { "Refusals" }
        @if refusals.is_empty() { p { "Nothing was refused since the start." } } @else {
            ul class="states" {
                @for ((class, code), count) in refusals { li { b { (count) } " " (code) " (" (class) ")" } }
            }
        }
    }
}

/// A list of nodes, with how many more there are.
fn nodes(
    title: &str,
    none: &str,
    listed: &[Listed],
    all: u64,
    row: impl Fn(&Listed) -> Markup,
) -> Markup {
    let more = all.saturating_sub(listed.len() as u64);
    html! {
        h2 { (title) }
        @if listed.is_empty() { p { (none) } } @else {
            (wide(title, &html! {
                thead { tr {
                    th scope="col" { "Node" } th scope="col" { "Address" } th scope="col" { "Labels" }
                    th scope="col" { "State" }
                } }
                tbody { @for it in listed { (row(it)) } }
            }))
        }
        @if more > 0 { p { "And " (more) " more: " code { "fabricctl node list" } " names all." } }
    }
}

fn node(of: &Listed, now_unix_ms: u64) -> Markup {
    let labels = of.labels.join(", ");
    let shown: String = labels.chars().take(LABELS_SHOWN).collect();
    let is_cut = shown.len() < labels.len();
    html! {
        tr {
            td class="id" { (of.node_id) } td { (of.endpoint) }
            td { (shown) @if is_cut { "…" } }
            td { @match of.state {
                State::Away(at) => { span class="bad" { "away" } " for " (span(now_unix_ms.saturating_sub(at))) }
                State::Late(age) => {
                    span class="bad" { "late" } ": said nothing for " (span(age.as_secs() * 1000))
                }
                State::Fenced => span class="bad" { "fenced" },
                State::Degraded => span class="bad" { "degraded" },
                State::Untold => { "has not told all that decides about a lease" }
                State::Full(percent) => { (in_use(of.node_id, 100, 100 - u64::from(percent.min(100)))) }
            } }
        }
    }
}
