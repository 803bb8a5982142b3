//! Runs a program of the host, with good error messages.

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const TAIL_LINES: usize = 15;
/// The most characters of a command line to show: some name hundreds of files.
const SHOWN_MAX: usize = 300;

/// Makes `command` end when this process ends in any way, because then nobody waits for its result.
pub fn end_with_parent(command: &mut Command) {
    die_with_parent(command, Signal::SIGTERM);
}

/// Makes the kernel send `signal` to the child when this process ends in any way, even by SIGKILL.
pub(crate) fn die_with_parent(command: &mut Command, signal: Signal) {
    let arm = move || {
        nix::sys::prctl::set_pdeathsig(signal)?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes one
    // system call, prctl(2), and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(arm);
    }
}

/// Runs `command` with its output appended to `log`. An error contains the end of that output. The
/// command ends with this process.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    end_with_parent(command);
    run_logged_to_its_end(command, log)
}

/// The same for a command that must not be interrupted: the command goes on when this process ends.
pub(crate) fn run_logged_to_its_end(command: &mut Command, log: &Path) -> Result<()> {
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

/// The command line as a user would type it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_child_ends_when_its_parent_is_gone() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut sleeper = Command::new("sleep");
        sleeper.arg("3600").stdout(writer);
        end_with_parent(&mut sleeper);
        // The signal is sent when the thread that started the child ends: this thread plays the parent.
        let started = std::thread::spawn(move || sleeper.spawn()).join().unwrap();
        // End of file: no process holds the pipe any more.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let status = started.unwrap().wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(Signal::SIGTERM as i32));
    }
}
