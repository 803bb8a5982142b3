//! The process that keeps a device: it outlives the shell that asked for it, and takes the device away
//! before the lease ends. What it does is in its log.

use std::{
    io::{self, Write},
    sync::mpsc,
    thread,
    time::Duration,
};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{LeaseId, LeaseInfo};
use nix::unistd::setsid;
use serde::Serialize;

use super::{
    super::lease::query,
    ears::Heard,
    in_use,
    log::{log, log_failure},
    made::{Made, now},
    record::{Files, Lock},
    socket::{Asked, Word},
    watch::Next,
};
use crate::{args::AttachPlace, failure::Failure, hint::Topic};

/// A file system that takes longer to write back has more to lose than there is time for.
const WRITE_BACK_MAX: Duration = Duration::from_secs(30);

/// What the parent reads when the device is there.
#[derive(Serialize)]
struct Ready<'a> {
    device: &'a str,
}

struct Keeper {
    lease_id: LeaseId,
    made: Made,
    lock: Lock,
}

/// Attaches, says so on standard output, and stays until the device is gone.
pub(super) fn run(node: &Node, place: &AttachPlace) -> Result<(), Failure> {
    // Fails only where this is the leader of a session already, which is as good.
    setsid().ok();
    let keeper = match Keeper::start(node, place) {
        Ok(keeper) => keeper,
        Err(failure) => {
            let failure = failure.advised(Topic::Lease);
            say(&failure.json()).ok();
            return Err(failure);
        }
    };
    let device = keeper.made.path.display().to_string();
    log(&format!("{device} is attached"));
    let ready = serde_json::to_string(&Ready { device: &device });
    let told = ready.map_err(io::Error::other).and_then(|line| say(&line));
    if let Err(error) = told {
        log(&format!("nobody waits for the device any more: {error}"));
        return keeper.detach(Duration::ZERO);
    }
    keeper.keep(node)
}

impl Keeper {
    fn start(node: &Node, place: &AttachPlace) -> Result<Self, Failure> {
        let files = Files::new(&place.kept.attach_dir, place.kept.id);
        files.make_dir()?;
        let lock = files.lock()?;
        // What an earlier keeper has left is not forgotten because this one fails.
        let is_first = files.read()?.is_none();
        match Made::new(node, place, &files, &lock) {
            Ok(made) => Ok(Self {
                lease_id: place.kept.id,
                made,
                lock,
            }),
            Err(failure) => {
                if is_first {
                    lock.remove();
                }
                Err(failure)
            }
        }
    }

    fn keep(mut self, node: &Node) -> Result<(), Failure> {
        loop {
            if self.made.is_gone() {
                log("the device went by itself");
                return self.detach(Duration::ZERO);
            }
            let heard = match self.made.watch.next(now()) {
                Next::Wait(time) => self.made.ears.wait(time),
                Next::Look if self.goes_on(node) => None,
                Next::Look => return self.detach(Duration::ZERO),
                Next::Detach => {
                    log("the lease ends soon and was not renewed");
                    return self.detach_in_time();
                }
            };
            match heard {
                None => {}
                Some(Heard::ToEnd(signal)) => {
                    log(&format!("told to end by {signal}"));
                    return self.detach_in_time();
                }
                Some(Heard::Asked(asked)) => {
                    if let Some(unanswered) = self.answer(asked) {
                        return self.leave(unanswered);
                    }
                }
            }
        }
    }

    /// The question comes back if there is no device any more.
    fn answer(&mut self, asked: Asked) -> Option<Asked> {
        if self.made.is_gone() {
            log("the device went by itself");
            return Some(asked);
        }
        let device = self.made.path.display().to_string();
        if asked.word == Word::Device {
            asked.answer(Ok(&device));
            return None;
        }
        log("asked to detach");
        let detached = in_use::check(&self.made.path).and_then(|()| self.made.detach());
        log_failure("not detached well", &detached);
        match detached {
            Ok(()) => Some(asked),
            Err(failure) => {
                asked.answer(Err(failure.message()));
                None
            }
        }
    }

    /// Answers last: whoever asked may attach it anew at once. What a device that went by itself has taken with
    /// it is told here.
    fn leave(mut self, asked: Asked) -> Result<(), Failure> {
        let device = self.made.path.display().to_string();
        let ended = self.made.detach_at_last();
        log_failure("not detached well", &ended);
        let gone = self.gone();
        match (asked.word, &ended) {
            (Word::Device, _) => asked.answer(Err("it has just gone")),
            (Word::Detach, Ok(())) => asked.answer(Ok(&device)),
            (Word::Detach, Err(failure)) => asked.answer(Err(failure.message())),
        }
        gone
    }

    /// Looks at the lease. A node that does not answer ends nothing: the lease's own time does.
    fn goes_on(&mut self, node: &Node) -> bool {
        let started = now();
        let answer = ask_within(self.made.watch.patience(started), node, self.lease_id);
        let Some(answer) = answer else {
            log("the node does not answer");
            self.made.watch.not_told(now());
            return true;
        };
        match answer {
            Ok(info) => {
                let goes_on = self.made.watch.told(&info, started);
                match goes_on {
                    true => self.made.follow_keys(&info),
                    false => log(&format!("the lease is {}", info.phase)),
                }
                goes_on
            }
            Err(error) if error.is_over() => {
                log(&format!("the lease is over: {error}"));
                false
            }
            Err(error) => {
                log(&format!("the node did not say how the lease is: {error}"));
                self.made.watch.not_told(now());
                true
            }
        }
    }

    /// While the node still takes what was written; half of the time is for the device to go.
    fn detach_in_time(self) -> Result<(), Failure> {
        let left = self.made.watch.left(now()) / 2;
        self.detach(left.min(WRITE_BACK_MAX))
    }

    /// Whether or not somebody uses it.
    fn detach(mut self, write_back: Duration) -> Result<(), Failure> {
        self.made.warn_user(write_back);
        let detached = self.made.detach_at_last();
        log_failure("not detached well", &detached);
        if self.made.is_gone() {
            return self.gone();
        }
        detached?;
        self.gone()
    }

    fn gone(self) -> Result<(), Failure> {
        log(&format!("{} is detached", self.made.path.display()));
        self.lock.remove();
        Ok(())
    }
}

/// A node that is stopped or cannot be reached is waited for on a thread of its own.
fn ask_within(
    patience: Duration,
    node: &Node,
    lease_id: LeaseId,
) -> Option<Result<LeaseInfo, Error>> {
    let (tell, told) = mpsc::channel();
    let node = node.clone();
    // Nobody listens any more to an answer that is late.
    thread::spawn(move || tell.send(query(&node, lease_id)).ok());
    told.recv_timeout(patience).ok()
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
