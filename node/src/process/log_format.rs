//! Formats the fields of log lines. Text that a peer chose cannot start a new line or control a terminal.

use std::{
    fmt::{self, Write},
    io,
    sync::OnceLock,
};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    field::MakeExt,
    fmt::{FormatFields, format},
};

static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines of this process's log that were dropped since its start.
pub(crate) fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |it| it.dropped_lines() as u64)
}

/// Writes log lines to standard error on a thread of its own, so that logging never blocks. Lines beyond the limit are
/// dropped and counted. Dropping the guard writes the waiting lines.
pub fn stderr(lines_waiting_max: usize) -> (NonBlocking, ErrorCounter, WorkerGuard) {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(lines_waiting_max)
        .thread_name("log")
        .finish(io::stderr());
    let dropped = writer.error_counter();
    DROPPED.set(dropped.clone()).ok();
    (writer, dropped, guard)
}

/// Fields as `name=value` with blanks between them; control characters are escaped.
pub fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let field =
        |to: &mut format::Writer<'_>, field: &tracing::field::Field, value: &dyn fmt::Debug| {
            match field.name() {
                "message" => {}
                // In lines of the `log` crate the prefix already has these fields.
                name if name.starts_with("log.") => return Ok(()),
                name => write!(to, "{name}=")?,
            }
            write!(Escaped(to), "{value:?}")
        };
    format::debug_fn(field).delimited(" ")
}

struct Escaped<'a, W>(&'a mut W);

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            // Unicode defines these two as line ends, although they are not control characters.
            '\u{2028}' | '\u{2029}' => write!(self.0, "{}", c.escape_unicode()),
            c if c.is_control() => write!(self.0, "{}", c.escape_default()),
            c => self.0.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn what_a_peer_says_makes_one_line_and_no_colours() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&lines);
        let writer = move || Sink(Arc::clone(&to));
        let format = tracing_subscriber::fmt()
            .fmt_fields(fields())
            .with_writer(writer);
        let said = "x\r\n2026-11-22T00:00:00Z  INFO granted \u{1b}[2J\u{9b}31m \u{85}\u{2028} ü";
        tracing::subscriber::with_default(format.with_ansi(true).finish(), || {
            tracing::warn!(plain = said, shown = %said, "peer: {said}");
        });
        let line = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert_eq!(line.matches("x\\r\\n2026-11-22").count(), 3, "{line}");
        assert_eq!(line.matches("\\u{1b}[2J\\u{9b}31m").count(), 3, "{line}");
        assert_eq!(line.matches("\\u{85}\\u{2028} ü").count(), 3, "{line}");
        assert!(line.contains(" shown=x\\r"), "{line}");
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
}
