//! The other process: started, spoken to, and given up when it falls silent.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// One that answers each line with a line. Dropped, it is killed, and waited for by a thread of its own: one that is
/// stuck in the kernel may stay for as long as that likes.
#[derive(Debug)]
pub(super) struct Helper {
    child: Option<Child>,
    to: ChildStdin,
    from: Receiver<String>,
}

impl Helper {
    pub(super) fn start(command: &[OsString]) -> Result<Self, String> {
        let (program, arguments) = command.split_first().ok_or("nobody is there to ask it")?;
        let failed = |error| format!("{}: {error}", program.display());
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(output)) => Ok(Self {
                child: Some(child),
                to,
                from: lines(output),
            }),
            _ => Err("it has no pipes".to_owned()),
        }
    }

    /// The line that answers this one. After an `Err` it is of no more use.
    pub(super) fn ask(&mut self, line: &str, patience: Duration) -> Result<String, String> {
        let pid = self.child.as_ref().map_or(0, Child::id);
        writeln!(self.to, "{line}").map_err(|error| format!("process {pid}: {error}"))?;
        self.from.recv_timeout(patience).map_err(|why| match why {
            RecvTimeoutError::Timeout => {
                format!("nothing for {} ms from process {pid}", patience.as_millis())
            }
            RecvTimeoutError::Disconnected => format!("process {pid} ended without an answer"),
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Fails only for one that has ended, which is as well.
            child.kill().ok();
            thread::spawn(move || child.wait());
        }
    }
}

/// Read by a thread, which ends with the process.
fn lines(output: ChildStdout) -> Receiver<String> {
    let (tell, told) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines();
        lines
            .map_while(Result::ok)
            .try_for_each(|line| tell.send(line))
    });
    told
}
