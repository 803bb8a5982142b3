//! Limits the lines of one cause, so that they do not displace lines of others: no peer fills the disk, or has the journal
//! of the system drop the lines of this service.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::LEASE;

/// Most lines of one cause in a [`PERIOD`](crate::PERIOD).
const LINES_MAX: u64 = 20;

/// Most lines about ends of leases of one tenant.
const LEASES_MAX: u64 = 500;

/// Most INFO lines of all causes, and most WARN lines, which tenants who end many leases cannot displace. systemd's journal
/// drops lines of a service beyond 10,000 in 30 seconds.
const INFO_MAX: u64 = 1_000;
const WARN_MAX: u64 = 500;

/// Most causes that are counted apart. The lines of further tenants count together, for each place in the program.
const CAUSES_MAX: usize = 1_024;

/// Most causes that get a line of their own about what was left out.
const TOLD_MAX: usize = 16;

/// Longest text of a peer that is kept, bytes.
const TEXT_BYTES_MAX: usize = 64;

/// The target of the lines about what was left out, which have no limit.
const TOLD: &str = "left_out";

/// Limits of WARN and INFO lines; a clone has the same counts. ERROR lines are not left out, and DEBUG and TRACE are there
/// for somebody who wants everything.
///
/// A cause is a place in the program with a tenant: the field `by`, or else `tenant`, if the line has one.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Whether what is left out is told; otherwise nothing is left out.
    is_told: bool,
    /// INFO and WARN lines of all causes that the log has.
    infos: u64,
    warnings: u64,
    of: HashMap<Cause, Count>,
}

type Cause = (Identifier, Option<String>);

#[derive(Debug, Default)]
struct Count {
    is_warning: bool,
    lines: u64,
    left_out: u64,
    /// The first line that was left out.
    first: Option<First>,
}

#[derive(Debug)]
struct First {
    module: &'static str,
    message: String,
}

impl<S: Subscriber> Layer<S> for Limits {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.gets_line(event)
    }
}

impl Limits {
    fn gets_line(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        let has_limit = matches!(*metadata.level(), Level::WARN | Level::INFO);
        if !has_limit || metadata.target() == TOLD {
            return true;
        }
        let mut said = Said::default();
        event.record(&mut said);
        let cause = (metadata.callsite(), said.by.or(said.tenant));
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.gets_line(cause, event, metadata)
    }

    /// Logs how many lines of each cause were left out since the last call, and begins a new period.
    pub(crate) fn tell(&self) {
        let counts = {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let next = Counts {
                is_told: true,
                ..Counts::default()
            };
            std::mem::replace(&mut *counts, next)
        };
        let of = counts.of.into_iter();
        let mut left_out: Vec<_> = of.filter(|(_, count)| count.left_out > 0).collect();
        // Of many causes warnings are named first.
        left_out.sort_by_key(|(_, count)| std::cmp::Reverse((count.is_warning, count.left_out)));
        let rest = left_out.split_off(left_out.len().min(TOLD_MAX));
        for ((_, tenant), count) in left_out {
            let (left_out, first) = (count.left_out, count.first);
            let (module, like) = first.map(|it| (it.module, it.message)).unzip();
            tracing::warn!(
                target: TOLD, left_out, tenant, module, like,
                "lines of one cause were left out of the log in the last seconds"
            );
        }
        let left_out: u64 = rest.iter().map(|(_, count)| count.left_out).sum();
        if left_out > 0 {
            let causes = rest.len();
            tracing::warn!(
                target: TOLD, left_out, causes,
                "lines of further causes were left out of the log in the last seconds"
            );
        }
    }
}

impl Counts {
    fn gets_line(
        &mut self,
        cause: Cause,
        event: &Event<'_>,
        of: &'static Metadata<'static>,
    ) -> bool {
        if !self.is_told {
            return true;
        }
        let (place, _) = &cause;
        let cause = match self.of.len() < CAUSES_MAX || self.of.contains_key(&cause) {
            true => cause,
            false => (place.clone(), None),
        };
        let count = self.of.entry(cause).or_default();
        count.lines += 1;
        let max = match of.target() {
            LEASE => LEASES_MAX,
            _ => LINES_MAX,
        };
        count.is_warning = *of.level() == Level::WARN;
        let (all, all_max) = match count.is_warning {
            true => (&mut self.warnings, WARN_MAX),
            false => (&mut self.infos, INFO_MAX),
        };
        if count.lines <= max && *all < all_max {
            *all += 1;
            return true;
        }
        count.left_out += 1;
        if count.first.is_none() {
            let mut said = Message::default();
            event.record(&mut said);
            count.first = Some(First {
                module: of.target(),
                message: said.0,
            });
        }
        false
    }
}

/// Who a line is about.
#[derive(Default)]
struct Said {
    by: Option<String>,
    tenant: Option<String>,
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "by" => self.by = Some(beginning(value)),
            "tenant" => self.tenant = Some(beginning(value)),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(field.name(), "by" | "tenant") {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = beginning(&format!("{value:?}"));
        }
    }
}

fn beginning(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
