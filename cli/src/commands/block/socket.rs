//! How `attach` and `detach` talk to the keeper of a lease: one word, one line back. The directory of the
//! socket is root's alone, and so is the socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    time::Duration,
};

/// A keeper answers at once, but for a device that takes its time to go: the kernel may have to write
/// back what a node that is gone never takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody who has connected keeps the keeper waiting.
const ASKER_PATIENCE: Duration = Duration::from_secs(1);
const WORD_BYTES_MAX: u64 = 16;

/// What is asked of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Which device it keeps.
    Device,
    /// To take the device away and end.
    Detach,
}

impl Word {
    const ALL: [Self; 2] = [Self::Device, Self::Detach];

    fn text(self) -> &'static str {
        match self {
            Self::Device => "device\n",
            Self::Detach => "detach\n",
        }
    }
}

/// The keeper's answer, or why it cannot; `None`: there is no keeper.
pub(super) fn ask(path: &Path, word: Word) -> io::Result<Option<Result<String, String>>> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word.text().as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(match line.trim_end().split_once(' ') {
        Some(("ok", answer)) => Some(Ok(answer.to_owned())),
        Some(("failed", why)) => Some(Err(why.to_owned())),
        // It has ended since.
        _ => None,
    })
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Where a keeper is asked.
#[derive(Debug)]
pub(super) struct Door(UnixListener);

impl Door {
    /// What a keeper that was killed has left is replaced.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        std::fs::remove_file(path).ok();
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// The next question, if one is there.
    pub(super) fn next(&self) -> Option<Asked> {
        let (stream, _) = self.0.accept().ok()?;
        Asked::read(stream).ok().flatten()
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) word: Word,
    stream: UnixStream,
}

impl Asked {
    fn read(stream: UnixStream) -> io::Result<Option<Self>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ASKER_PATIENCE))?;
        stream.set_write_timeout(Some(ASKER_PATIENCE))?;
        let mut line = String::new();
        BufReader::new((&stream).take(WORD_BYTES_MAX)).read_line(&mut line)?;
        let word = Word::ALL.into_iter().find(|word| word.text() == line);
        Ok(word.map(|word| Self { word, stream }))
    }

    /// One line; who asked may have gone.
    pub(super) fn answer(mut self, answer: Result<&str, &str>) {
        let (word, rest) = match answer {
            Ok(rest) => ("ok", rest),
            Err(why) => ("failed", why),
        };
        let line = format!("{word} {}\n", rest.replace(char::is_control, " "));
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
        assert_eq!(ask(&path, Word::Device).unwrap(), None);
        drop(Door::open(&path).unwrap());
        assert_eq!(ask(&path, Word::Device).unwrap(), None);
    }
}
