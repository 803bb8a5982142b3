//! What a keeper has while a device is attached.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, Request};
use nix::time::{ClockId, clock_gettime};

use super::{
    super::lease::ask,
    device::Device,
    ears::Ears,
    in_use,
    log::{log, log_failure},
    record::{Files, Lock, Record},
    watch::Watch,
    ways::ways,
};
use crate::{args::AttachPlace, failure::Failure};

/// What there is while a device is attached.
pub(super) struct Made {
    pub(super) device: Device,
    pub(super) path: PathBuf,
    pub(super) ears: Ears,
    pub(super) watch: Watch,
    /// The kernel is being given other keys.
    keys: Option<Receiver<Result<bool, Failure>>>,
    keys_trouble: String,
}

impl Made {
    pub(super) fn new(
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
        match lock.write(&record).and_then(|()| open_ears(files)) {
            Ok(ears) => Ok(Self {
                device,
                path,
                ears,
                watch,
                keys: None,
                keys_trouble: String::new(),
            }),
            Err(failure) => {
                log_failure("the device could not be kept", &device.detach());
                Err(failure)
            }
        }
    }

    /// The connection that is open goes on whatever comes of this. What takes longer than `patience` is looked
    /// after the next time.
    pub(super) fn follow_keys(&mut self, info: &LeaseInfo, patience: Duration) {
        let begun = self.keys.take().or_else(|| self.device.follow_keys(info));
        let Some(keys) = begun else { return };
        match keys.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => self.keys = Some(keys),
            Err(RecvTimeoutError::Disconnected) | Ok(Ok(false)) => {}
            Ok(Ok(true)) => {
                log("the lease has new keys; the kernel has connected with them");
                self.keys_trouble.clear();
            }
            Ok(Err(failure)) => self.keys_failed(failure.message()),
        }
    }

    /// Said once, as long as it stays the same.
    fn keys_failed(&mut self, why: &str) {
        if self.keys_trouble != why {
            log(&format!(
                "the connection keeps the lease's old keys, with which it cannot be made anew if it is lost: {why}"
            ));
            why.clone_into(&mut self.keys_trouble);
        }
    }

    /// Names who uses the device when it has to go, and stores in that time what can be stored.
    pub(super) fn warn_user(&self, write_back: Duration) {
        let device = self.path.display();
        if let Some(user) = in_use::user(&self.path) {
            let stored = match user.write_back(write_back) {
                Ok(()) => "what was written to it is stored".to_owned(),
                Err(error) => format!("what was written to it last may be lost ({error})"),
            };
            let remedy = user.remedy();
            log(&format!(
                "{device} is still {user}, and goes all the same: {stored}; {remedy}, it only gives errors now"
            ));
        }
    }
}

fn open_ears(files: &Files) -> Result<Ears, Failure> {
    let path = files.socket();
    Ears::open(&path)
        .map_err(|error| Failure::local(&format!("listen at {}", path.display()), &error))
}

/// Goes on while the machine is suspended, as the lease does.
pub(super) fn now() -> Duration {
    // It fails for clocks that there are not, and this one is there since Linux 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}
