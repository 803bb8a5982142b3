//! The exposition formats: OpenMetrics 1.0.0, and the Prometheus text format 0.0.4, which is made of it.

use std::{collections::BTreeSet, fmt};

use fabricbios_lease::Histogram;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode_registry},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::monitor::{
    Figures,
    metrics::{METRICS, Metric, Sort},
};

/// How a page of metrics is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The format that every collector reads.
    Text,
    OpenMetrics,
}

impl Format {
    /// OpenMetrics if the Accept header names it without refusing it (RFC 9110, section 12.5.1).
    pub(super) fn wanted(accept: &str) -> Self {
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

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The value of one sample.
pub(super) enum Value<'a> {
    Count(u64),
    Number(f64),
    Spans(&'a Histogram),
}

/// Takes the samples of a metric: the values of its labels, and the value.
pub(super) type Take<'a> = dyn FnMut(&[&str], Value<'_>) + 'a;

/// The page. `figures` has all that is told.
pub(super) fn encode(figures: &Figures, format: Format) -> String {
    let mut page = String::new();
    let mut registry = Registry::default();
    let mut families = Families::default();
    for metric in METRICS {
        families.add(metric, figures);
    }
    registry.register_collector(Box::new(families));
    // A String takes everything.
    encode_registry(&mut page, &registry).ok();
    match format {
        Format::OpenMetrics => page + "# EOF\n",
        Format::Text => as_text(&page),
    }
}

/// All samples, ready to be written.
#[derive(Debug, Default)]
struct Families(Vec<Family>);

#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    samples: Vec<(Vec<(&'static str, String)>, Owned)>,
}

#[derive(Debug)]
enum Owned {
    Count(u64),
    Number(f64),
    Spans(Box<Histogram>),
}

impl Families {
    fn add(&mut self, metric: &'static Metric, figures: &Figures) {
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
        self.0.push(Family { metric, samples });
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { metric, samples } in &self.0 {
            let (sort, unit) = (metric.sort.metric_type(), metric.unit());
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), sort)?;
            for (labels, value) in samples {
                // An empty list of labels would be written as `{}`.
                match labels.is_empty() {
                    true => write(&mut family, metric.sort, value)?,
                    false => write(&mut family.encode_family(labels)?, metric.sort, value)?,
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

impl Metric {
    fn unit(&self) -> Option<Unit> {
        match self.unit {
            "" => None,
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            other => Some(Unit::Other(other.to_owned())),
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
