//! One running virtual machine: from QEMU's start to the exit code of its command.
//!
//! Process 1 of the guest writes the result of a run to its exit port as the last line, after the nonce of this
//! boot. Before it runs the command, it writes there that it begins. No output and no crash of the guest can
//! look like this result.

use crate::machine::{Accelerator, Files, VmSpec};
use crate::process::{die_with_parent, tail};
use crate::run_directory::RunDirectory;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Name of the emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// How much of a command's output is kept in memory for its caller; the log has all of it.
const OUTPUT_KEPT_BYTES: usize = 64 * 1024;
/// Enough for a whole kernel panic, from its reason to its last line.
const CONSOLE_TAIL_LINES: usize = 60;
const POLL_MS: u64 = 20;
/// Time from QEMU's start to the command, usually some ten seconds. One guest under emulation never reached its
/// command: its second processor had no timer interrupts ("rcu_preempt kthread starved" on the console).
const BOOT_MAX: Duration = Duration::from_secs(120);
/// How long a guest that has the terminal may take to power off and give it back.
const POWER_OFF_MS: u64 = 5_000;

/// A function that shows output.
pub type Show = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Where a command's output is shown while it runs.
#[derive(Clone)]
pub enum Echo {
    /// Nowhere: the output goes only to the log.
    Quiet,
    /// On standard output, as it comes.
    Plain,
    /// On standard output, each line after this prefix.
    Prefixed(String, Box<Echo>),
    /// With this function, which gets the bytes as they come.
    Call(Show),
    /// The guest's command has the terminal itself.
    Terminal,
}

impl std::fmt::Debug for Echo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quiet => f.write_str("Quiet"),
            Self::Plain => f.write_str("Plain"),
            Self::Prefixed(prefix, echo) => {
                f.debug_tuple("Prefixed").field(prefix).field(echo).finish()
            }
            Self::Call(_) => f.write_str("Call"),
            Self::Terminal => f.write_str("Terminal"),
        }
    }
}

impl Echo {
    fn show(&self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Quiet | Self::Terminal => {}
            Self::Call(show) => show(bytes),
            Self::Plain | Self::Prefixed(..) => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()?;
            }
        }
        Ok(())
    }
}

/// The result of a command in a guest.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its exit code.
    pub code: i32,
    /// The end of its output.
    pub output: String,
    /// Time from QEMU's start to the exit code.
    pub took: Duration,
}

pub(crate) enum Ending {
    Code(i32),
    Died(ExitStatus),
    TimedOut,
    /// The command never began.
    NotBooted,
    /// The other guest of the pair failed, and the time to notice this is over.
    Abandoned,
}

/// A QEMU process; dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Guest {
    child: Child,
    pump: Option<JoinHandle<Vec<u8>>>,
    nonce: String,
    /// Name, begin and time limit of the current job.
    name: String,
    started: Instant,
    timeout: Option<Duration>,
    terminal: bool,
    pub(crate) directory: RunDirectory,
}

impl Guest {
    /// Relative paths in `spec` are relative to `workplace`.
    pub(crate) fn start(
        spec: &VmSpec,
        accelerator: Accelerator,
        files: &Files,
        workplace: &Path,
        directory: RunDirectory,
        echo: &Echo,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let terminal = matches!(echo, Echo::Terminal);
        let mut command = Command::new(QEMU);
        command.args(spec.command_line(accelerator, files, terminal));
        command.current_dir(workplace);
        command.stderr(File::create(directory.qemu_log())?);
        if !terminal {
            // QEMU treats an end of file on its standard input as a hang-up of the whole channel and
            // drops all output from then on. So its input is a pipe that stays open and empty.
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        }
        die_with_parent(&mut command, Signal::SIGKILL);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {QEMU}"))?;
        let log = File::create(directory.output_log())?;
        let pump = child.stdout.take().map(|output| {
            let echo = echo.clone();
            std::thread::spawn(move || pump(output, log, &echo))
        });
        Ok(Self {
            child,
            pump,
            nonce: directory.nonce().to_owned(),
            name: directory.name().to_owned(),
            started: Instant::now(),
            timeout,
            terminal,
            directory,
        })
    }

    /// Records that a running guest begins its next command, with this time limit.
    pub(crate) fn goes_on(&mut self, name: &str, timeout: Option<Duration>) {
        name.clone_into(&mut self.name);
        self.started = Instant::now();
        self.timeout = timeout;
    }

    /// Whether the run has ended.
    pub(crate) fn poll(&mut self) -> Result<Option<Ending>> {
        // Checked before the exit file is read: a guest that wrote its exit code and then powered off has
        // not died.
        let status = self.child.try_wait()?;
        if let Some(code) = self.exit_code() {
            return Ok(Some(Ending::Code(code)));
        }
        if let Some(status) = status {
            return Ok(Some(Ending::Died(status)));
        }
        if self.started.elapsed() > BOOT_MAX && !self.has_begun() {
            return Ok(Some(Ending::NotBooted));
        }
        let over = self
            .timeout
            .is_some_and(|timeout| self.started.elapsed() > timeout);
        Ok(over.then_some(Ending::TimedOut))
    }

    pub(crate) fn wait(&mut self) -> Result<Ending> {
        loop {
            if let Some(ending) = self.poll()? {
                return Ok(ending);
            }
            nap();
        }
    }

    /// Ends QEMU, and turns the ending into the command's exit code or into an error that shows
    /// where the guest died. The directory stays, for the caller to close.
    pub(crate) fn finish(mut self, ending: &Ending) -> (Result<Finished>, RunDirectory) {
        let took = self.started.elapsed();
        let result = self.stop().and_then(|output| {
            let why = match ending {
                Ending::Code(code) => {
                    return Ok(Finished {
                        code: *code,
                        output,
                        took,
                    });
                }
                Ending::Died(status) => format!("died without an exit code (QEMU: {status})"),
                Ending::Abandoned => "was ended because its peer had failed".to_owned(),
                Ending::NotBooted => format!("did not come up in {} s", took.as_secs()),
                Ending::TimedOut => format!("did not finish in {} s", took.as_secs()),
            };
            bail!(
                "the guest of `{}` {why}\n{}",
                self.name,
                self.last_words(&output)
            )
        });
        (result, self.directory.clone())
    }

    fn stop(&mut self) -> Result<String> {
        if self.terminal {
            self.await_power_off()?;
        }
        self.child.kill()?;
        self.child.wait()?;
        let output = match self.pump.take() {
            Some(pump) => pump.join().unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// QEMU gives the terminal back as it was only when it ends by itself.
    fn await_power_off(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(POWER_OFF_MS) {
            if self.child.try_wait()?.is_some() {
                break;
            }
            nap();
        }
        Ok(())
    }

    /// The last complete line of the exit port, without the nonce.
    fn told(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.directory.exit_file()).ok()?;
        let (nonce, told) = text.strip_suffix('\n')?.lines().last()?.split_once(' ')?;
        (nonce == self.nonce).then(|| told.to_owned())
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.told().is_some()
    }

    fn exit_code(&self) -> Option<i32> {
        self.told()?.parse().ok()
    }

    fn last_words(&self, output: &str) -> String {
        let read =
            |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let parts = [
            (
                "console",
                tail(&read(self.directory.console_log()), CONSOLE_TAIL_LINES),
            ),
            ("output", tail(output, CONSOLE_TAIL_LINES)),
            (
                "QEMU",
                tail(&read(self.directory.qemu_log()), CONSOLE_TAIL_LINES),
            ),
        ];
        let parts = parts.iter().filter(|(_, text)| !text.trim().is_empty());
        let shown: Vec<String> = parts
            .map(|(name, text)| format!("--- the end of its {name}:\n{text}"))
            .collect();
        format!(
            "{}\n--- logs: {}",
            shown.join("\n"),
            self.directory.path().display()
        )
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // QEMU may have ended already: then there is no process to kill.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn nap() {
    std::thread::sleep(Duration::from_millis(POLL_MS));
}

/// Copies a guest's output to its log and to the terminal; returns the end of it.
fn pump(mut output: impl Read, mut log: File, echo: &Echo) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut shower = Shower {
        echo,
        line: Vec::new(),
    };
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        let bytes = &buffer[..length];
        // A full disk or a closed terminal must not stop the guest, because its exit code is the result.
        drop(log.write_all(bytes));
        drop(shower.show(bytes));
        kept.extend_from_slice(bytes);
        let excess = kept.len().saturating_sub(OUTPUT_KEPT_BYTES);
        kept.drain(..excess);
    }
    drop(shower.flush());
    kept
}

struct Shower<'a> {
    echo: &'a Echo,
    line: Vec<u8>,
}

impl Shower<'_> {
    fn show(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Echo::Prefixed(prefix, echo) = self.echo else {
            return self.echo.show(bytes);
        };
        self.line.extend_from_slice(bytes);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            echo.show(&[prefix.as_bytes(), b" | ", &line].concat())?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.line.is_empty() {
            Ok(())
        } else {
            self.show(b"\n")
        }
    }
}
