//! The process that keeps a device: it outlives the shell that asked for it, and takes the device away
//! before the lease ends. What it does is in its log.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{LeaseError, LeaseId, LeaseInfo, Request};
use nix::{
    time::{ClockId, clock_gettime},
    unistd::setsid,
};
use serde::Serialize;

use super::{
    super::lease::ask,
    device::{Device, ways},
    in_use,
    record::{Files, Lock, Record},
    socket::{Door, Word},
    watch::{Next, Watch},
};
use crate::{args::AttachPlace, failure::Failure, hint::Topic, time_text};

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

/// What there is while a device is attached.
struct Made {
    device: Device,
    path: PathBuf,
    door: Door,
    watch: Watch,
}

impl Made {
    fn new(
        node: &Node,
        place: &AttachPlace,
        files: &Files,
        lock: &mut Lock,
    ) -> Result<Self, Failure> {
        let lease_id = place.kept.id;
        // Counted from before the question: rather too early than too late.
        let started = now();
        let info = ask(node, lease_id, Request::LeaseQuery(lease_id))?;
        let watch = Watch::new(&info, started);
        let (mut device, path) = Device::attach(node, lease_id, ways(&info, place.transport)?)?;
        let record = Record {
            lease_id: lease_id.to_string(),
            device: path.clone(),
            keeper_pid: std::process::id(),
            nvmeof: device.target().cloned(),
        };
        match lock.write(&record).and_then(|()| open_door(files)) {
            Ok(door) => Ok(Self {
                device,
                path,
                door,
                watch,
            }),
            Err(failure) => {
                log_failure("the device could not be kept", &device.detach());
                Err(failure)
            }
        }
    }
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
        return keeper.detach();
    }
    keeper.keep(node)
}

impl Keeper {
    fn start(node: &Node, place: &AttachPlace) -> Result<Self, Failure> {
        let files = Files::new(&place.kept.attach_dir, place.kept.id);
        files.make_dir()?;
        let mut lock = files.lock()?;
        // What an earlier keeper has left is not forgotten because this one fails.
        let is_first = files.read()?.is_none();
        match Made::new(node, place, &files, &mut lock) {
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
            if self.made.device.is_gone() {
                log("the device went by itself");
                return self.detach();
            }
            match self.made.watch.next(now()) {
                Next::Wait(time) => {
                    if self.hear(time) {
                        return self.gone();
                    }
                }
                Next::Look if self.goes_on(node) => {}
                Next::Look => return self.detach(),
                Next::Detach => {
                    log("the lease ends soon and was not renewed");
                    return self.detach();
                }
            }
        }
    }

    /// Answers whoever asks in that time; whether the device is gone.
    fn hear(&mut self, time: Duration) -> bool {
        let Some(asked) = self.made.door.wait(time) else {
            return false;
        };
        let device = self.made.path.display().to_string();
        if asked.word == Word::Device {
            asked.answer(Ok(&device));
            return false;
        }
        log("asked to detach");
        let detached = in_use::check(&self.made.path).and_then(|()| self.made.device.detach());
        log_failure("not detached well", &detached);
        match &detached {
            Ok(()) => asked.answer(Ok(&device)),
            Err(failure) => asked.answer(Err(failure.message())),
        }
        detached.is_ok()
    }

    /// Looks at the lease. A node that does not answer ends nothing: the lease's own time does.
    fn goes_on(&mut self, node: &Node) -> bool {
        let started = now();
        match query(node, self.lease_id) {
            Ok(info) => {
                let goes_on = self.made.watch.told(&info, started);
                if !goes_on {
                    log(&format!("the lease is {}", info.phase));
                }
                goes_on
            }
            Err(error) if is_over(&error) => {
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

    fn detach(mut self) -> Result<(), Failure> {
        let detached = self.made.device.detach();
        log_failure("not detached well", &detached);
        if self.made.device.is_gone() {
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

fn open_door(files: &Files) -> Result<Door, Failure> {
    let path = files.socket();
    Door::open(&path)
        .map_err(|error| Failure::local(&format!("listen at {}", path.display()), &error))
}

fn query(node: &Node, lease_id: LeaseId) -> Result<LeaseInfo, Error> {
    match node.call_blocking(Request::LeaseQuery(lease_id))? {
        fabricbios_wire::Reply::Lease(info) => Ok(info),
        other => Err(node.unexpected("a lease", &other)),
    }
}

/// What the node says of a lease that it has no more.
fn is_over(error: &Error) -> bool {
    use LeaseError::{Expired, Fenced, NotFound, Revoked};
    let code = error.refusal().map(|refusal| refusal.error);
    matches!(code, Some(Expired | Fenced | NotFound | Revoked))
}

/// Goes on while the machine is suspended, as the lease does.
fn now() -> Duration {
    // It fails for clocks that there are not, and this one is there since Linux 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Standard error is the log.
pub(super) fn log(what: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    // A log that cannot be written is no reason to lose a device.
    writeln!(io::stderr(), "{} {what}", time_text::utc(ms)).ok();
}

fn log_failure(what: &str, outcome: &Result<(), Failure>) {
    if let Err(failure) = outcome {
        log(&format!("{what}: {}", failure.message()));
    }
}
