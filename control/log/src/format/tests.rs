use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::*;

const HOSTILE: &str = "x\r\n2026-11-22T00:00:00Z  INFO granted tenant=\"admin\" \\ \u{1b}[2J\u{9b}31m \u{85}\u{2028}\u{7f} ü";

/// The log that `by` writes.
fn logged(format: LogFormat, by: impl FnOnce()) -> String {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&lines);
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .fmt_fields(Fields)
        .event_format(Lines::of(format))
        .with_writer(move || Sink(Arc::clone(&to)))
        .finish();
    tracing::subscriber::with_default(subscriber, by);
    let lines = lines.lock().unwrap().clone();
    String::from_utf8(lines).unwrap()
}

/// What stands behind the module in the only line of this log.
fn told(by: impl FnOnce()) -> String {
    let log = logged(LogFormat::Text, by);
    assert_eq!(log.matches('\n').count(), 1, "{log}");
    let (_, told) = log.trim_end().split_once(": ").expect("a module");
    told.to_owned()
}

/// Splits a line into message and fields, as a reader would who knows the rule only.
fn parsed(mut told: &str) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut name = String::from("message");
    loop {
        let value = if told.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(told).into_iter::<String>();
            let value = values.next().expect("a value").expect("a JSON string");
            let at = values.byte_offset();
            told = &told[at..];
            value
        } else if name == "message" {
            let ends = told.find('=').map_or(told.len(), |at| {
                told[..at].rfind(' ').expect("a blank before a name")
            });
            let (value, rest) = told.split_at(ends);
            told = rest;
            value.to_owned()
        } else {
            let (value, rest) = told.split_at(told.find(' ').unwrap_or(told.len()));
            told = rest;
            value.to_owned()
        };
        fields.push((std::mem::take(&mut name), value));
        let Some(rest) = told.strip_prefix(' ') else {
            assert_eq!(told, "");
            return fields;
        };
        let (next, rest) = rest.split_once('=').expect("a field");
        (name, told) = (next.to_owned(), rest);
    }
}

#[test]
fn a_plain_value_is_bare_and_one_with_blanks_or_signs_is_a_json_string() {
    let told = told(|| {
        let (sign, none) = ("a=b", "");
        tracing::info!(id = %7, at = ?Some(1), text = "plain", said = "two words", sign, none, "it ended");
    });
    assert_eq!(
        told,
        r#"it ended id=7 at=Some(1) text=plain said="two words" sign="a=b" none="""#
    );
}

#[test]
fn what_a_peer_says_makes_one_line_no_field_and_no_colours() {
    let told = told(|| tracing::warn!(plain = HOSTILE, shown = %HOSTILE, "peer: {HOSTILE}"));
    assert!(!told.contains(must_be_escaped), "{told}");
    let said = |name: &str, text: String| (name.to_owned(), text);
    let expected = [
        said("message", format!("peer: {HOSTILE}")),
        said("plain", HOSTILE.into()),
        said("shown", HOSTILE.into()),
    ];
    assert_eq!(parsed(&told), expected, "{told}");
}

#[test]
fn a_quote_at_the_beginning_of_what_a_peer_says_is_no_value_that_ends() {
    let told = told(|| tracing::info!(tenant = %"\"a\" role=operator", "refused"));
    assert_eq!(told, r#"refused tenant="\"a\" role=operator""#);
}

#[test]
fn json_lines_are_valid_whatever_a_peer_says() {
    let log = logged(LogFormat::Json, || {
        tracing::warn!(plain = HOSTILE, shown = %HOSTILE, count = 7, "peer: {HOSTILE}");
    });
    let line = log.strip_suffix('\n').expect("a line");
    assert!(!line.contains(must_be_escaped), "{line}");
    let object: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(object["message"], format!("peer: {HOSTILE}"));
    assert_eq!(object["plain"], HOSTILE);
    assert_eq!(object["shown"], HOSTILE);
    assert_eq!(
        (&object["count"], &object["level"]),
        (&7.into(), &"WARN".into())
    );
    assert!(object["timestamp"].is_string() && object["target"].is_string());
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
