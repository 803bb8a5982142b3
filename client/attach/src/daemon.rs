//! The block daemon: a process that attaches the device of a lease, outlives the shell that started it, and detaches the
//! device before the lease ends. It writes a log.

use std::{
    io::{self, Write},
    time::Duration,
};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseId, Request, Transport};
use nix::{sys::signal::SigSet, unistd::setsid};
use serde::{Deserialize, Serialize};

use crate::{
    attachment::Attachment,
    control_socket::{ControlCommand, ControlRequest},
    error::AttachError,
    events::Event,
    in_use,
    log::{log, log_error},
    record::{LeaseFiles, RecordLock},
    wait::within,
    watch::{Next, now},
};

/// Longest time for writing a file system back.
const WRITE_BACK_MAX: Duration = Duration::from_secs(30);

/// The line that the daemon prints when the device is attached.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) device: String,
}

/// An attached device, and the process that keeps it.
#[derive(Debug)]
pub struct BlockDaemon {
    lease_id: LeaseId,
    attachment: Attachment,
    lock: RecordLock,
}

impl BlockDaemon {
    /// Attaches the device. `ends`: the signals that end the daemon; the caller has blocked them before it had a second
    /// thread, since each thread inherits the mask.
    ///
    /// # Errors
    /// If the lease cannot become a device, if another process attaches it, or if this machine or the node fails to attach it.
    pub fn start(
        node: &Node,
        files: &LeaseFiles,
        wanted: Transport,
        ends: &SigSet,
    ) -> Result<Self, AttachError> {
        // This fails only if the process already leads a session, which serves as well.
        setsid().ok();
        files.make_dir()?;
        let lock = files.lock()?;
        // The record of an earlier daemon stays if this one fails.
        let is_first = files.read()?.is_none();
        match Attachment::new(node, files, wanted, ends, &lock) {
            Ok(attachment) => Ok(Self {
                lease_id: files.lease_id(),
                attachment,
                lock,
            }),
            Err(error) => {
                if is_first {
                    lock.remove();
                }
                Err(error)
            }
        }
    }

    /// Reports the device on standard output and runs until the device is gone. The log is standard error.
    ///
    /// # Errors
    /// If the device was not detached.
    pub fn run(self, node: &Node) -> Result<(), AttachError> {
        let device = self.attachment.path.display().to_string();
        log(&format!("{device} is attached"));
        if let Err(error) = report(&Ready { device }) {
            log(&format!(
                "the process that started the block daemon is gone: {error}"
            ));
            return self.detach(Duration::ZERO);
        }
        self.keep(node)
    }

    fn keep(mut self, node: &Node) -> Result<(), AttachError> {
        loop {
            if self.attachment.is_gone() {
                log("the device is gone");
                return self.detach(Duration::ZERO);
            }
            let event = match self.attachment.watch.next(now()) {
                Next::Wait(time) => self.attachment.events.wait(time),
                Next::Query if self.goes_on(node) => None,
                Next::Query => return self.detach(Duration::ZERO),
                Next::Detach => {
                    log("the lease ends soon and was not renewed");
                    return self.detach_in_time();
                }
            };
            match event {
                None => {}
                Some(Event::Signal(signal)) => {
                    log(&format!("{signal} ends the block daemon"));
                    return self.detach_in_time();
                }
                Some(Event::Request(request)) => {
                    if let Some(unanswered) = self.answer(request) {
                        return self.leave(unanswered);
                    }
                }
            }
        }
    }

    /// Answers a request; returns the request if the device is gone.
    fn answer(&mut self, request: ControlRequest) -> Option<ControlRequest> {
        if self.attachment.is_gone() {
            log("the device is gone");
            return Some(request);
        }
        let device = self.attachment.path.display().to_string();
        if request.command == ControlCommand::Device {
            request.answer(Ok(&device));
            return None;
        }
        log("`block detach` asks for the end of the device");
        let detached = in_use::check(&self.attachment.path).and_then(|()| self.attachment.detach());
        log_error("detached with an error", &detached);
        match detached {
            Ok(()) => Some(request),
            Err(error) => {
                request.answer(Err(&error.to_string()));
                None
            }
        }
    }

    /// Ends the daemon and answers the request last, because its sender may attach the lease again at once. If the device
    /// disappeared, the answer says whether writes were lost.
    fn leave(mut self, request: ControlRequest) -> Result<(), AttachError> {
        let device = self.attachment.path.display().to_string();
        let ended = self.attachment.detach_at_last();
        log_error("detached with an error", &ended);
        let gone = self.gone();
        match (request.command, &ended) {
            (ControlCommand::Device, _) => request.answer(Err("the device has just gone")),
            (ControlCommand::Detach, Ok(())) => request.answer(Ok(&device)),
            (ControlCommand::Detach, Err(error)) => request.answer(Err(&error.to_string())),
        }
        gone
    }

    /// Asks the node for the lease; returns whether the lease goes on. If the node does not answer, the lease goes on until
    /// its end.
    fn goes_on(&mut self, node: &Node) -> bool {
        let started = now();
        let answer_timeout = self.attachment.watch.answer_timeout(started);
        let (node, query) = (node.clone(), Request::LeaseQuery(self.lease_id));
        // A node that is stopped or cannot be reached may not answer for long.
        let answer = within(answer_timeout, move || node.lease(query));
        let Some(answer) = answer else {
            log("the node does not answer");
            self.attachment.watch.no_answer(now());
            return true;
        };
        match answer {
            Ok(info) => {
                let goes_on = self.attachment.watch.answered(&info, started);
                match goes_on {
                    true => self.attachment.follow_keys(&info),
                    false => log(&format!("the lease is {}", info.phase)),
                }
                goes_on
            }
            Err(error) if error.is_over() => {
                log(&format!("the lease is over: {error}"));
                false
            }
            Err(error) => {
                log(&format!(
                    "the node did not say whether the lease goes on: {error}"
                ));
                self.attachment.watch.no_answer(now());
                true
            }
        }
    }

    /// Detaches while the node still takes writes: half of the remaining time is for writing back, half for detaching.
    fn detach_in_time(self) -> Result<(), AttachError> {
        let left = self.attachment.watch.remaining(now()) / 2;
        self.detach(left.min(WRITE_BACK_MAX))
    }

    /// Detaches the device even if it is in use.
    fn detach(mut self, write_back: Duration) -> Result<(), AttachError> {
        self.attachment.warn_user(write_back);
        let detached = self.attachment.detach_at_last();
        log_error("detached with an error", &detached);
        if self.attachment.is_gone() {
            return self.gone();
        }
        detached?;
        self.gone()
    }

    fn gone(self) -> Result<(), AttachError> {
        log(&format!("{} is detached", self.attachment.path.display()));
        self.lock.remove();
        Ok(())
    }
}

fn report(ready: &Ready) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(ready)?)?;
    stdout.flush()
}
