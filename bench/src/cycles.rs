//! Grants and cuts, one lease after another, in turn with a shell script that makes and ends the same objects.

use std::{
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use fabricbios_client::Node;
use fabricbios_wire::{LeaseAllocRequest, LeaseInfo, LeaseTerms, Request};

use crate::figure::Figure;
use crate::pairs::{Pairs, interleaved_pairs};

const LEASE_SECS: u32 = 600;
/// How long the resources of a lease may take to become free.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(5);

/// Times of a grant and of the cut that follows it.
pub(crate) type Cycle = (Duration, Duration);

/// Prints the grants and the cuts of both, and their ratios. `name` begins the names of the figures.
pub(crate) fn compare(
    name: &str,
    rounds: u16,
    [first, second]: [&str; 2],
    mut one: impl FnMut() -> anyhow::Result<Cycle>,
    mut other: impl FnMut() -> anyhow::Result<Cycle>,
) -> anyhow::Result<()> {
    let mut cuts = Pairs {
        a: Vec::new(),
        b: Vec::new(),
    };
    let grants = interleaved_pairs(
        rounds.into(),
        || {
            let (grant, cut) = one()?;
            cuts.a.push(cut);
            Ok(grant)
        },
        || {
            let (grant, cut) = other()?;
            cuts.b.push(cut);
            Ok(grant)
        },
    )?;
    for (what, pairs) in [("grant", grants), ("cut", cuts)] {
        pairs.print(&format!("{what}, {first}"), &format!("{what}, {second}"));
        Figure::record_times(
            &format!("{name}-{what}"),
            &format!("{what}, {first}"),
            &pairs,
            second,
        )?;
    }
    Ok(())
}

/// Requests a lease. Returns it with the time from the request to the answer. A refusal is no failure while resources
/// may become free.
pub(crate) fn grant(
    tenant: &Node,
    capacity: u64,
    terms: impl Into<LeaseTerms>,
) -> anyhow::Result<(LeaseInfo, Duration)> {
    let terms = terms.into();
    let request = LeaseAllocRequest::new(terms.resource_type(), capacity, LEASE_SECS);
    let request = request.with_terms(terms);
    let began = Instant::now();
    loop {
        let start = Instant::now();
        match tenant.alloc(request.clone()) {
            Err(_) if began.elapsed() < RELEASE_MAX => sleep(Duration::from_millis(5)),
            granted => return Ok((granted?, start.elapsed())),
        }
    }
}

/// The time from the request to the answer, which comes when the cut is proved.
pub(crate) fn cut(tenant: &Node, lease: &LeaseInfo) -> anyhow::Result<Duration> {
    let start = Instant::now();
    tenant.call(Request::LeaseFree(lease.lease_id))?;
    Ok(start.elapsed())
}

/// The time that a shell script takes. The script must succeed.
pub(crate) fn script(lines: &str) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let status = Command::new("sh").args(["-ec", lines]).status();
    let status = status.context("start sh")?;
    ensure!(status.success(), "{status} of the script\n{lines}");
    Ok(start.elapsed())
}
