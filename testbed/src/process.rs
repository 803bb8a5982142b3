//! Running a program of the host and saying well what went wrong with it.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

const TAIL_LINES: usize = 15;
/// How much of a command line is worth showing: some name hundreds of files.
const SHOWN_MAX: usize = 300;

/// Runs `command` with its output appended to `log`. An error carries the end of that output.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let mut file = append(log)?;
    let start = file.metadata()?.len();
    std::io::Write::write_all(&mut file, format!("$ {}\n", brief(command)).as_bytes())?;
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if status.success() {
        return Ok(());
    }
    let output = std::fs::read(log)?;
    let output = output.get(usize::try_from(start)?..).unwrap_or_default();
    bail!(
        "{} ended with {status}; the end of {}:\n{}",
        brief(command),
        log.display(),
        tail(&String::from_utf8_lossy(output), TAIL_LINES)
    )
}

fn append(log: &Path) -> Result<File> {
    if let Some(parent) = log.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    options
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))
}

/// Runs `command` and returns its standard output as text.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} ended with {}:\n{}",
            shown(command),
            output.status,
            tail(&stderr, TAIL_LINES)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command line as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    crate::shell::quote_all(&words)
}

fn brief(command: &Command) -> String {
    let line = shown(command);
    match line.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

/// The last lines of a text.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().map(str::trim_end).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
