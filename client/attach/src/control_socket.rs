//! The control socket of the block daemon, for `attach` and `detach`: one command, one line as answer. Only root may use the
//! socket and its directory.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    time::Duration,
};

/// How long `attach` and `detach` wait for an answer. The daemon answers at once, unless the kernel needs long to detach:
/// it may have to write data back to a node that is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the daemon waits for a client of the socket.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
const COMMAND_BYTES_MAX: u64 = 16;

/// A command to the block daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlCommand {
    /// Return the path of the device.
    Device,
    /// Detach the device and end.
    Detach,
}

impl ControlCommand {
    const ALL: [Self; 2] = [Self::Device, Self::Detach];

    fn text(self) -> &'static str {
        match self {
            Self::Device => "device\n",
            Self::Detach => "detach\n",
        }
    }
}

/// Sends a command and returns the answer, or the reason of a failure; `None`: there is no daemon.
pub(crate) fn ask(
    path: &Path,
    command: ControlCommand,
) -> io::Result<Option<Result<String, String>>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(command.text().as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(match line.trim_end().split_once(' ') {
        Some(("ok", answer)) => Some(Ok(answer.to_owned())),
        Some(("failed", why)) => Some(Err(why.to_owned())),
        // The daemon has ended meanwhile.
        _ => None,
    })
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// The listening socket of the daemon.
#[derive(Debug)]
pub(crate) struct ControlSocket(UnixListener);

impl ControlSocket {
    /// Opens the socket; replaces one that a killed daemon left.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        std::fs::remove_file(path).ok();
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next request, if there is one.
    pub(crate) fn next(&self) -> Option<ControlRequest> {
        let (stream, _) = self.0.accept().ok()?;
        ControlRequest::read(stream).ok().flatten()
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct ControlRequest {
    pub(crate) command: ControlCommand,
    stream: UnixStream,
}

impl ControlRequest {
    fn read(stream: UnixStream) -> io::Result<Option<Self>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new((&stream).take(COMMAND_BYTES_MAX)).read_line(&mut line)?;
        let command = ControlCommand::ALL
            .into_iter()
            .find(|command| command.text() == line);
        Ok(command.map(|command| Self { command, stream }))
    }

    /// Answers with one line; the client may be gone.
    pub(crate) fn answer(mut self, answer: Result<&str, &str>) {
        let (command, rest) = match answer {
            Ok(rest) => ("ok", rest),
            Err(why) => ("failed", why),
        };
        let line = format!("{command} {}\n", rest.replace(char::is_control, " "));
        self.stream.write_all(line.as_bytes()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_is_nobody_answers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        assert_eq!(ask(&path, ControlCommand::Device).unwrap(), None);
        drop(ControlSocket::open(&path).unwrap());
        assert_eq!(ask(&path, ControlCommand::Device).unwrap(), None);
    }
}
