//! The configuration file: each entry is read like the flag of the same name.

use std::{
    any::TypeId,
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use clap::{
    Arg, ArgAction, Command, FromArgMatches,
    error::{ContextKind, ContextValue, Error},
};
use fabricbios_wire::Size;
use nix::fcntl::OFlag;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ConfigError, Given, Settings};

/// Longest file, bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Flags for one start only; the file must not contain them.
pub(super) const FLAGS_ONLY: [&str; 3] = ["config", "force", "without-pool"];

/// Why the configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The machine: the file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The operator: this is no file of settings.
    #[error("{0}: is this the file that you mean?")]
    Other(String),
    /// The operator: the file is empty.
    #[error(
        "there is no setting in it: give one, such as mem-bytes = \"1GiB\", or leave --config out"
    )]
    Empty,
    /// The operator: a line is no setting, or has a value that the setting does not take.
    #[error("line {line}: {fault}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        fault: EntryFault,
    },
    /// The file as a whole does not give settings.
    #[error(transparent)]
    Flags(#[from] clap::Error),
}

/// What is wrong with a line of the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum EntryFault {
    /// It is no TOML: the setting at its beginning, or nothing, and the reason.
    #[error("{0}{1}")]
    Syntax(String, String),
    /// The setting holds for one start only.
    #[error("{0} holds for one start, so it cannot be in the file: give --{0}")]
    OneStart(String),
    /// There is no such setting: its name, and a tip.
    #[error("there is no setting {0:?}: {1}")]
    Unknown(String, String),
    /// The setting does not take this value.
    #[error("{name} = {value}: {why}")]
    Value {
        /// The name of the setting.
        name: String,
        /// The value in the notation of the file.
        value: String,
        /// What it takes.
        why: String,
    },
}

/// Reads the settings of a file.
pub(super) fn read(path: &Path) -> Result<Settings, ConfigError> {
    let read = text_of(path).map_err(|fault| vec![fault]);
    let path = || path.to_owned();
    read.and_then(|text| parse(&text))
        .map_err(|faults| ConfigError::File {
            path: path(),
            faults,
        })
}

fn text_of(path: &Path) -> Result<String, FileFault> {
    let mut bytes = Vec::new();
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    let mut open = OpenOptions::new();
    open.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = open.open(path)?;
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(FileFault::Other("it is no regular file".into()));
    }
    let length = file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if length as u64 > BYTES_MAX {
        let why = format!("it has more than {BYTES_MAX} bytes");
        return Err(FileFault::Other(why));
    }
    String::from_utf8(bytes).map_err(|_not_text| FileFault::Other("it is no text file".into()))
}

/// `Err`: the fault of each bad line, in the order of the lines.
pub(super) fn parse(text: &str) -> Result<Settings, Vec<FileFault>> {
    let command = Settings::arguments();
    let line_of = |at: usize| {
        text.as_bytes()
            .iter()
            .take(at)
            .filter(|it| **it == b'\n')
            .count()
            + 1
    };
    let (table, broken) = DeTable::parse_recoverable(text);
    let mut faults = BTreeMap::new();
    for error in broken {
        let line = line_of(error.span().map_or(0, |span| span.start));
        let setting = name_in(text.lines().nth(line - 1).unwrap_or_default(), &command);
        // In a file of another format every line has an error: keep the first, and those that name a setting.
        if faults.is_empty() || !setting.is_empty() {
            let fault = EntryFault::Syntax(setting, error.message().to_owned());
            faults.entry(line).or_insert(fault);
        }
    }
    let is_broken = !faults.is_empty();
    let mut settings = Settings::default();
    let mut words = Vec::new();
    for (key, value) in table.get_ref() {
        let entry = Entry {
            name: key.get_ref(),
            value: value.get_ref(),
        };
        let line = line_of(key.span().start);
        if faults.contains_key(&line) || is_broken && !is_setting(entry.name, &command) {
            continue;
        }
        match entry.words(&command) {
            Ok(of_entry) => words.extend(of_entry),
            Err(fault) => drop(faults.insert(line, fault)),
        }
        settings.lines.insert(entry.name.to_owned(), line);
    }
    if !faults.is_empty() {
        let with_line = |(line, fault)| FileFault::Line { line, fault };
        return Err(faults.into_iter().map(with_line).collect());
    }
    if settings.lines.is_empty() {
        return Err(vec![FileFault::Empty]);
    }
    let matches = command.try_get_matches_from(words);
    let read = matches.and_then(|it| {
        settings.given = Given::of(&it);
        settings.update_from_arg_matches(&it)
    });
    read.map_err(|error| vec![error.into()])?;
    Ok(settings)
}

fn is_setting(name: &str, command: &Command) -> bool {
    let mut all = command.get_arguments();
    all.any(|it| it.get_long() == Some(name))
}

/// The setting at the beginning of a line, for an error. The error contains nothing else of the line: it may be a
/// secret of another file.
fn name_in(line: &str, command: &Command) -> String {
    let name = line.split('=').next().unwrap_or_default().trim();
    match is_setting(name, command) {
        true => format!("{name}: "),
        false => String::new(),
    }
}

/// An entry of the file.
struct Entry<'a> {
    name: &'a str,
    value: &'a DeValue<'a>,
}

impl Entry<'_> {
    /// The command-line arguments with the same meaning.
    fn words(&self, command: &Command) -> Result<Vec<String>, EntryFault> {
        let Self { name, value } = self;
        if FLAGS_ONLY.contains(name) {
            return Err(EntryFault::OneStart((*name).to_owned()));
        }
        let found = command
            .get_arguments()
            .find(|it| it.get_long() == Some(name));
        let argument = found.ok_or_else(|| unknown(name, command))?;
        match (argument.get_action(), value) {
            (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{name}")]),
            (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
            (ArgAction::SetTrue, _) => Err(self.bad(value, "true or false is expected")),
            (ArgAction::Append, DeValue::Array(values)) => {
                let read =
                    |value: &Spanned<DeValue<'_>>| self.word(argument, value.get_ref(), command);
                values.iter().map(read).collect()
            }
            // A list with one value may be written without brackets.
            (_, value) => Ok(vec![self.word(argument, value, command)?]),
        }
    }

    /// Converts one value into a valid argument.
    fn word(
        &self,
        argument: &Arg,
        value: &DeValue<'_>,
        command: &Command,
    ) -> Result<String, EntryFault> {
        let of = argument.get_value_parser().type_id();
        let takes_numbers = of == TypeId::of::<u32>() || of == TypeId::of::<Size>();
        let (text, has_form) = match value {
            DeValue::String(text) => (text.to_string(), true),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                (
                    decimal.map_or_else(|_| number.to_string(), |it| it.to_string()),
                    takes_numbers,
                )
            }
            other => (shown(other), false),
        };
        let word = format!("--{}={text}", self.name);
        let read = command.clone().try_get_matches_from([&word]);
        match read {
            Err(error) => Err(self.bad(value, reason(&error))),
            Ok(_) if !has_form => Err(self.bad(value, "a text in quotes is expected")),
            Ok(_) => Ok(word),
        }
    }

    fn bad(&self, value: &DeValue<'_>, why: impl Into<String>) -> EntryFault {
        EntryFault::Value {
            name: self.name.to_owned(),
            value: shown(value),
            why: why.into(),
        }
    }
}

/// A value in the notation of the file.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(values) => {
            let values = values.iter().map(|it| shown(it.get_ref()));
            format!("[{}]", values.collect::<Vec<_>>().join(", "))
        }
        DeValue::Table(_) => "{ … }".into(),
    }
}

fn unknown(name: &str, command: &Command) -> EntryFault {
    let read = command.clone().try_get_matches_from([format!("--{name}")]);
    let suggested = read
        .err()
        .and_then(|error| match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
            _ => None,
        });
    let tip = match suggested {
        Some(name) => format!("did you mean {name}?"),
        None => "`fabricbiosd control-server --help` lists all".into(),
    };
    EntryFault::Unknown(name.to_owned(), tip)
}

/// The reason of a refused value, without the words that apply to flags only.
fn reason(error: &Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    let tip = match error.get(ContextKind::SuggestedValue) {
        Some(ContextValue::String(word)) => format!("; did you mean {word}?"),
        _ => String::new(),
    };
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(words)) if !words.is_empty() => {
            format!("one of {} is expected{tip}", words.join(", "))
        }
        _ => "a value is expected".into(),
    }
}
