//! The HTML. The macro escapes every text: nothing of a tenant, an operator or a device becomes markup.

use std::sync::Arc;

use fabricbios_http::page::{in_use, prose, span, wide};
use fabricbios_lease::Availability;
use fabricbios_wire::{Fence, LeaseId, LeaseInfo, LeasePage, ProofStep, ResourceId};
use maud::{Markup, html};

use crate::monitor::{
    Figures,
    health::{Health, name, reason},
    page::{WORDS, ask::Told},
};

/// What the live part is made of.
pub(super) struct View<'a> {
    pub(super) health: Health,
    pub(super) figures: &'a Figures,
    pub(super) charts: Markup,
    pub(super) now_unix_ms: u64,
    /// For an operator; `Some(None)`: the node is too busy to tell.
    pub(super) told: Option<Option<Arc<Told>>>,
}

impl View<'_> {
    pub(super) fn live(&self) -> Markup {
        html! {
            (self.state())
            (self.resources())
            @match &self.told {
                Some(Some(told)) => {
                    (fences(&told.fences, self))
                    (self.charts)
                    (ends(&told.ends, self.now_unix_ms))
                    (leases(&told.leases, "Leases by id"))
                }
                Some(None) => { (self.charts) p class="bad" { "The node is too busy to list leases and fences." } }
                None => { (self.charts) p class="note" { (prose(WORDS.log_in)) } }
            }
        }
    }

    fn state(&self) -> Markup {
        let health = &self.health;
        let fenced = { self.figures.driver.offered.iter() }
            .filter(|it| it.fenced || it.fenced_part > 0)
            .count();
        html! {
            dl {
                dt { "State" }
                dd {
                    @if health.well { span class="good" { "well" } } @else { span class="bad" { "not well" } }
                    @if health.ready { ", grants leases" } @else { ", " span class="bad" { "grants nothing" } }
                }
                dt { "Node" } dd class="id" { (health.node_id) }
                dt { "Fabric" } dd class="id" { (health.fabric) }
                dt { "Version" } dd { (health.version) }
                dt { "Fenced resources" } dd { (fenced) }
                dt { "Leases" }
                dd {
                    ul class="states" {
                        @for (state, count) in &health.leases { li { b { (count) } " " (state) } }
                        @if health.leases.is_empty() { li { "none yet" } }
                    }
                    @if health.leases_above_bound > 0 {
                        span class="bad" { (health.leases_above_bound) " for longer than it should take" }
                    }
                }
            }
            @if !health.not_well.is_empty() {
                h2 { "Not well" }
                ul { @for it in &health.not_well { li { b class="bad" { (it.name) ": " (it.state) } " – " (it.why) } } }
            }
        }
    }

    fn resources(&self) -> Markup {
        let offered = &self.figures.driver.offered;
        html! {
            h2 { "Resources" }
            (wide("Resources", &html! {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Kind" } th scope="col" { "State" }
                    th scope="col" { "In use" }
                    th scope="col" class="number" { "Available" } th scope="col" class="number" { "Capacity" }
                } }
                tbody { @for it in offered { (self.resource(it)) } }
            }))
        }
    }

    fn resource(&self, of: &Availability) -> Markup {
        let inventory = &self.figures.driver.inventory;
        let name = name(inventory, of.resource_id);
        let state = match (of.fenced, of.fenced_part, reason(inventory, of.resource_id)) {
            (true, ..) => "fenced",
            (false, 1.., _) => "partly fenced",
            (false, 0, Some(_)) => "degraded",
            (false, 0, None) => "well",
        };
        let kind = of.resource_type;
        html! {
            tr {
                th scope="row" { (name) } td { (kind) }
                td class=(if state == "well" { "good" } else { "bad" }) { (state) }
                td { (in_use(&name, of.capacity, of.available)) }
                td class="number" { (kind.amount(of.available)) }
                td class="number" { (kind.amount(of.capacity)) }
            }
        }
    }

    fn name(&self, id: ResourceId) -> String {
        name(&self.figures.driver.inventory, id)
    }
}

fn fences(fences: &[Fence], view: &View<'_>) -> Markup {
    html! {
        h2 { "Fences" }
        @if fences.is_empty() { p { "Nothing is fenced." } }
        @for it in fences {
            dl {
                dt { "Resource" } dd { b class="bad" { (view.name(it.resource_id)) } " (" (it.resource_type) ")" }
                dt { "Since" } dd { (span(view.now_unix_ms.saturating_sub(it.since_unix_ms))) }
                dt { "Reason" } dd { (it.reason) }
                @if it.lease_id != LeaseId(0) { dt { "Left by" } dd { (link(it.lease_id)) } }
                dt { "Remediation" }
                dd { "Mend the cause, then run " code { "fabricctl fence clear " (it.resource_id) }
                     ", which proves the resource clean before it grants of it again." }
            }
        }
    }
}

fn ends(ends: &[LeaseInfo], now_unix_ms: u64) -> Markup {
    html! {
        h2 { "Last ends" }
        @if ends.is_empty() { p { "No lease has ended since the start." } } @else {
            (wide("Last ends", &html! {
                thead { tr {
                    th scope="col" { "Lease" } th scope="col" { "Tenant" } th scope="col" { "Cause" }
                    th scope="col" { "Ago" } th scope="col" { "Proof of the cut" }
                } }
                tbody { @for it in ends {
                    @if let Some(end) = &it.end { tr {
                        td { (link(it.lease_id)) } td { (it.tenant.as_deref().unwrap_or_default()) }
                        td { (end.cause) } td class="number" { (span(now_unix_ms.saturating_sub(end.at_unix_ms))) }
                        td { (steps(&end.proof)) }
                    } }
                } }
            }))
        }
    }
}

/// A page of leases.
pub(super) fn leases(page: &LeasePage, title: &str) -> Markup {
    html! {
        h2 { (title) }
        @if page.leases.is_empty() { p { "No lease." } } @else {
            (wide(title, &html! {
                thead { tr {
                    th scope="col" { "Lease" } th scope="col" { "Tenant" } th scope="col" { "Kind" }
                    th scope="col" class="number" { "Capacity" } th scope="col" { "State" }
                    th scope="col" class="number" { "Ends in" }
                } }
                tbody { @for it in &page.leases { tr {
                    td { (link(it.lease_id)) } td { (it.tenant.as_deref().unwrap_or_default()) }
                    td { (it.resource_type()) } td class="number" { (it.resource_type().amount(it.capacity)) }
                    td { (it.phase) } td class="number" { (span(it.remaining_ms)) }
                } } }
            }))
        }
        @if let Some(next) = page.next { p { a href={ "/leases?after=" (next) } { "The next leases" } } }
    }
}

/// One lease, without what opens it.
pub(super) fn lease(of: &LeaseInfo, now_unix_ms: u64) -> Markup {
    let ago = |unix_ms: u64| html! { (span(now_unix_ms.saturating_sub(unix_ms))) " ago" };
    html! {
        dl {
            dt { "Lease" } dd class="id" { (of.lease_id) }
            dt { "Tenant" } dd { (of.tenant.as_deref().unwrap_or_default()) }
            dt { "Resource" } dd { (of.resource_type()) " " span class="id" { (of.resource_id) } }
            dt { "Capacity" } dd { (of.resource_type().amount(of.capacity)) }
            dt { "State" } dd { (of.phase) }
            dt { "Granted" } dd { (ago(of.granted_at_unix_ms)) }
            @match &of.end {
                None => { dt { "Ends in" } dd { (span(of.remaining_ms)) } }
                Some(end) => {
                    dt { "Ended" } dd { (ago(end.at_unix_ms)) ", " (end.cause) }
                    @if let Some(by) = &end.by { dt { "By" } dd { (by) } }
                    dt { "Proof of the cut" } dd { (steps(&end.proof)) }
                    dt { "Cleaned" } dd { (steps(&end.cleaning)) }
                }
            }
        }
    }
}

fn steps(steps: &[ProofStep]) -> Markup {
    html! {
        @if steps.is_empty() { "none" } @else {
            ol { @for it in steps { li { code { (it.step) } " " (it.found) " (" (it.took_us) " µs)" } } }
        }
    }
}

fn link(id: LeaseId) -> Markup {
    html! { a class="id" href={ "/lease/" (id) } { (id) } }
}
