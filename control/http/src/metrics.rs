//! Tables of metrics, and the exposition formats: OpenMetrics 1.0.0, and the Prometheus text format 0.0.4, which is made of
//! it. A program has one table; its page and the table of the docs are made of it.

use std::{collections::BTreeSet, fmt};

use fabricbios_lease::Histogram;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode_registry},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::header::{ACCEPT, HeaderMap};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Grows until the daemon ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Spans of time by their length.
    Histogram,
}

/// A metric of a program whose figures are an `F`.
#[derive(Debug)]
pub struct Metric<F> {
    /// The name, without the unit and the `_total` of counters.
    pub name: &'static str,
    /// The meaning, for people.
    pub help: &'static str,
    /// What it is.
    pub sort: Sort,
    /// `seconds`, `bytes`, or nothing.
    pub unit: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Reads the samples.
    pub read: fn(&F, &mut Take<'_>),
}

impl<F> Metric<F> {
    /// The name of its samples; a histogram's have further endings.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = if self.unit.is_empty() { "" } else { "_" };
        let total = match self.sort {
            Sort::Counter => "_total",
            _ => "",
        };
        format!("{}{unit}{}{total}", self.name, self.unit)
    }

    /// Its row in the table of the docs: name, sort, labels, meaning.
    #[must_use]
    pub fn row(&self) -> String {
        let sort = match self.sort {
            Sort::Counter => "counter",
            Sort::Gauge => "gauge",
            Sort::Histogram => "histogram",
        };
        let labels: Vec<String> = self.labels.iter().map(|it| format!("`{it}`")).collect();
        let (name, labels) = (self.full_name(), labels.join(", "));
        format!("| `{name}` | {sort} | {labels} | {} |\n", self.help)
    }
}

/// Makes the table: `name unit, sort, labels, help: read;` for each metric, in the order of the page.
#[macro_export]
macro_rules! metrics {
    ($($name:literal $unit:literal, $sort:ident, $labels:expr, $help:literal: $read:expr;)*) => {
        &[$($crate::metrics::Metric {
            name: $name,
            help: $help,
            sort: $crate::metrics::Sort::$sort,
            unit: $unit,
            labels: $labels,
            read: $read,
        }),*]
    };
}

/// How a page of metrics is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The format that every collector reads.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// What the client wants.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let accept = headers.get(ACCEPT).and_then(|it| it.to_str().ok());
        Self::wanted(accept.unwrap_or_default())
    }

    /// OpenMetrics if the Accept header names it without refusing it (RFC 9110, section 12.5.1).
    fn wanted(accept: &str) -> Self {
        let named = accept.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_it = parts
                .next()
                .is_some_and(|it| it == "application/openmetrics-text");
            let quality = |part: &str| part.strip_prefix("q=")?.parse::<f32>().ok();
            is_it && parts.filter_map(quality).all(|it| it > 0.0)
        });
        if named { Self::OpenMetrics } else { Self::Text }
    }

    /// The media type of a page.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The value of one sample.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// A histogram.
    Spans(&'a Histogram),
}

impl Value<'_> {
    /// 1 or 0.
    #[must_use]
    pub fn flag(is_set: bool) -> Self {
        Self::Count(is_set.into())
    }
}

/// Takes the samples of a metric: the values of its labels, and the value.
pub type Take<'a> = dyn FnMut(&[&str], Value<'_>) + 'a;

/// The page of a table. `figures` has all that is told.
#[must_use]
pub fn encode<F>(table: &'static [Metric<F>], figures: &F, format: Format) -> String {
    let mut page = String::new();
    let mut registry = Registry::default();
    let families = table.iter().map(|it| Family::of(it, figures)).collect();
    registry.register_collector(Box::new(Families(families)));
    // A String takes everything.
    encode_registry(&mut page, &registry).ok();
    match format {
        Format::OpenMetrics => page + "# EOF\n",
        Format::Text => as_text(&page),
    }
}

/// All samples, ready to be written.
#[derive(Debug)]
struct Families(Vec<Family>);

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    sort: Sort,
    unit: Option<Unit>,
    samples: Vec<(Vec<(&'static str, String)>, Owned)>,
}

#[derive(Debug)]
enum Owned {
    Count(u64),
    Number(f64),
    Spans(Box<Histogram>),
}

impl Family {
    fn of<F>(metric: &'static Metric<F>, figures: &F) -> Self {
        let mut samples = Vec::new();
        (metric.read)(figures, &mut |values, value| {
            let labels = metric.labels.iter().zip(values);
            let labels = labels.map(|(label, value)| (*label, (*value).to_owned()));
            let value = match value {
                Value::Count(it) => Owned::Count(it),
                Value::Number(it) => Owned::Number(it),
                Value::Spans(it) => Owned::Spans(Box::new(it.clone())),
            };
            samples.push((labels.collect(), value));
        });
        let unit = match metric.unit {
            "" => None,
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            other => Some(Unit::Other(other.to_owned())),
        };
        Self {
            name: metric.name,
            help: metric.help,
            sort: metric.sort,
            unit,
            samples,
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for it in &self.0 {
            let (sort, unit) = (it.sort.metric_type(), it.unit.as_ref());
            let mut family = encoder.encode_descriptor(it.name, it.help, unit, sort)?;
            for (labels, value) in &it.samples {
                // An empty list of labels would be written as `{}`.
                match labels.is_empty() {
                    true => write(&mut family, it.sort, value)?,
                    false => write(&mut family.encode_family(labels)?, it.sort, value)?,
                }
            }
        }
        Ok(())
    }
}

fn write(to: &mut MetricEncoder<'_>, sort: Sort, value: &Owned) -> Result<(), fmt::Error> {
    match (value, sort) {
        (Owned::Count(it), Sort::Counter) => to.encode_counter::<NoLabelSet, _, u64>(it, None),
        (Owned::Number(it), Sort::Counter) => to.encode_counter::<NoLabelSet, _, u64>(it, None),
        (Owned::Count(it), _) => to.encode_gauge(it),
        (Owned::Number(it), _) => to.encode_gauge(it),
        (Owned::Spans(it), _) => {
            #[expect(clippy::cast_precision_loss, reason = "the bounds are small")]
            let seconds = Histogram::BOUNDS_US.map(|it| it as f64 / 1e6);
            let mut buckets: Vec<(f64, u64)> = seconds.into_iter().zip(it.up_to).collect();
            let within: u64 = it.up_to.iter().sum();
            buckets.push((f64::INFINITY, it.count.saturating_sub(within)));
            to.encode_histogram::<NoLabelSet>(it.sum.as_secs_f64(), it.count, &buckets, None)
        }
    }
}

impl Sort {
    fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
        }
    }
}

/// In the older format a counter is named as its samples are, and there are no units and no end.
fn as_text(page: &str) -> String {
    let counters: BTreeSet<&str> = { page.lines() }
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines().filter(|it| !it.starts_with("# UNIT ")) {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(of), Some(name), Some(rest)) if counters.contains(name) => {
                text += &format!("# {of} {name}_total {rest}");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let of_prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                             text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for (accept, expected) in [
            (of_prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text;q=0, text/plain", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::wanted(accept), expected, "{accept}");
        }
    }

    #[test]
    fn the_older_format_names_counters_by_their_samples() {
        let page = "# HELP a_bytes A b.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"# TYPE\"} 1\n\
                    # HELP g G.\n# TYPE g gauge\ng 2\n";
        let text = "# HELP a_bytes_total A b.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# TYPE\"} 1\n\
                    # HELP g G.\n# TYPE g gauge\ng 2\n";
        assert_eq!(as_text(page), text);
    }
}
