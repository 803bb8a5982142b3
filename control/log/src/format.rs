//! The format of log lines. Text that a peer chose makes no new line, no field, and no control of a terminal.

use std::{borrow::Cow, fmt};

use clap::ValueEnum;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{self, Format, Full, Json, Writer},
    },
    registry::LookupSpan,
};

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, module, message, then fields as `name=value`.
    #[default]
    Text,
    /// One JSON object a line, with `timestamp`, `level`, `target`, `message` and the fields by their names.
    Json,
}

/// Writes each event as one line of a [`LogFormat`].
#[derive(Debug)]
pub enum Lines {
    /// As text.
    Text(Format<Full>),
    /// As JSON.
    Json(Format<Json>),
}

impl Lines {
    /// The lines of this format.
    #[must_use]
    pub fn of(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text(format::format()),
            LogFormat::Json => Self::Json(format::format().json().flatten_event(true)),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self {
            Self::Text(format) => format.format_event(context, writer, event),
            Self::Json(format) => {
                let mut line = String::new();
                format.format_event(context, Writer::new(&mut line), event)?;
                writer.write_str(&escaped(&line))
            }
        }
    }
}

/// The fields of text lines: the message, then `name=value`, with blanks between them. A value with blanks, quotes, `=`,
/// backslashes or control characters is a JSON string, and so is a message with one of these other than blanks.
#[derive(Clone, Copy, Debug)]
pub struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = Visitor {
            writer,
            written: Ok(()),
            is_first: true,
        };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct Visitor<'writer> {
    writer: Writer<'writer>,
    written: fmt::Result,
    is_first: bool,
}

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // In lines of the `log` crate the prefix already has these fields.
        if self.written.is_ok() && !field.name().starts_with("log.") {
            self.written = self.write(field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl Visitor<'_> {
    fn write(&mut self, name: &str, value: &str) -> fmt::Result {
        if !std::mem::replace(&mut self.is_first, false) {
            self.writer.write_char(' ')?;
        }
        let ends_a_value = |c: char| matches!(c, '"' | '=' | '\\') || must_be_escaped(c);
        let is_plain = match name {
            "message" => !value.contains(ends_a_value),
            _ => {
                write!(self.writer, "{name}=")?;
                !value.is_empty() && !value.contains(|c: char| c == ' ' || ends_a_value(c))
            }
        };
        match is_plain {
            true => self.writer.write_str(value),
            false => {
                let quoted = serde_json::to_string(value).map_err(|_never| fmt::Error)?;
                self.writer.write_str(&escaped(&quoted))
            }
        }
    }
}

/// Control characters, and the two that Unicode defines as line ends although they are none.
fn must_be_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// JSON with the characters escaped that it may have in strings and that a terminal or a reader of lines may act upon. The
/// line ends behind a value stay.
fn escaped(json: &str) -> Cow<'_, str> {
    let is_raw = |c: char| must_be_escaped(c) && c != '\n';
    if !json.contains(is_raw) {
        return json.into();
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_raw(c) {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text.into()
}

#[cfg(test)]
mod tests;
