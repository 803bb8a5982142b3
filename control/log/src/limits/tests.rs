use std::{
    io::{Read, Seek},
    sync::Mutex,
};

use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::{Fields, LEASE};

/// The lines that `by` writes, from the message on.
fn logged(limits: &Limits, by: impl FnOnce()) -> Vec<String> {
    let mut file = tempfile::tempfile().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .fmt_fields(Fields)
        .with_writer(Mutex::new(file.try_clone().unwrap()))
        .finish()
        .with(limits.clone());
    tracing::subscriber::with_default(subscriber, by);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn told() -> Limits {
    let limits = Limits::default();
    limits.tell();
    limits
}

fn refused(tenant: &str) {
    tracing::info!(%tenant, "refused");
}

#[test]
fn a_tenant_has_its_lines_and_those_left_out_are_counted_when_the_period_ends() {
    let limits = told();
    let lines = logged(&limits, || (0..1_000).for_each(|_| refused("loud")));
    assert_eq!(lines, ["INFO refused tenant=loud"; 20]);
    let lines = logged(&limits, || refused("quiet"));
    assert_eq!(lines, ["INFO refused tenant=quiet"]);

    let lines = logged(&limits, || limits.tell());
    let [line] = &*lines else { panic!("{lines:?}") };
    assert!(line.contains(" left_out=980 tenant=loud "), "{line}");
    assert!(line.ends_with(" like=refused"), "{line}");

    let lines = logged(&limits, || {
        limits.tell();
        refused("loud");
    });
    assert_eq!(lines, ["INFO refused tenant=loud"]);
}

#[test]
fn who_asks_counts_and_not_the_name_that_it_asks_for() {
    let lines = logged(&told(), || {
        for name in 0..1_000 {
            tracing::info!(by = "loud", tenant = name.to_string(), "identity refused");
        }
    });
    assert_eq!(lines.len(), 20);
}

#[test]
fn a_flood_of_one_kind_hides_no_error_and_no_line_of_another_place() {
    let lines = logged(&told(), || {
        for _ in 0..1_000 {
            refused("loud");
            tracing::error!("FENCED");
            tracing::debug!("asked for");
        }
        tracing::warn!(tenant = "loud", "another place");
    });
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        (of("refused"), of("FENCED"), of("asked for")),
        (20, 1_000, 1_000)
    );
    assert_eq!(of("another place"), 1);
}

#[test]
fn the_ends_of_a_tenants_leases_have_more_lines_than_its_refusals() {
    let lines = logged(&told(), || {
        for _ in 0..1_000 {
            tracing::info!(target: LEASE, tenant = "busy", "lease ended");
        }
    });
    assert_eq!(lines.len(), 500);
}

#[test]
fn tenants_without_end_take_bounded_memory_and_lines() {
    let limits = told();
    let lines = logged(&limits, || {
        for tenant in 0..10_000 {
            refused(&format!("{tenant:0>200}"));
        }
        tracing::error!("FENCED");
    });
    assert!(lines.len() <= 1_501, "{}", lines.len());
    assert_eq!(lines.last().unwrap(), "ERROR FENCED");
    let counts = limits.0.lock().unwrap();
    assert!(counts.of.len() <= CAUSES_MAX + 1);
    let longest = counts
        .of
        .keys()
        .flat_map(|(_, tenant)| tenant)
        .map(String::len);
    assert_eq!(longest.max(), Some(64));
    drop(counts);
    let lines = logged(&limits, || limits.tell());
    assert!(lines.len() <= TOLD_MAX + 1, "{lines:?}");
}

#[test]
fn nothing_is_left_out_that_nobody_would_tell() {
    let lines = logged(&Limits::default(), || {
        (0..1_000).for_each(|_| refused("loud"));
    });
    assert_eq!(lines.len(), 1_000);
}
