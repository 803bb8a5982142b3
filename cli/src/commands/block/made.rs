//! What a keeper has while a device is attached.

use std::{path::PathBuf, time::Duration};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, RefusalClass, Request};
use nix::time::{ClockId, clock_gettime};

use super::{
    super::lease::ask,
    device::Device,
    ears::Ears,
    in_use,
    key_change::KeyChange,
    log::{log, log_failure},
    nvme_host::Target,
    record::{Files, Lock, Record},
    watch::Watch,
    ways::{Way, ways},
};
use crate::{
    args::AttachPlace,
    failure::{Exit, Failure},
};

/// What there is while a device is attached.
pub(super) struct Made {
    pub(super) device: Device,
    pub(super) path: PathBuf,
    pub(super) ears: Ears,
    pub(super) watch: Watch,
    keys: KeyChange,
}

/// Shorter than whoever asks waits for the keeper's answer.
const KEYS_WITHIN: Duration = Duration::from_secs(20);

impl Made {
    pub(super) fn new(
        node: &Node,
        place: &AttachPlace,
        files: &Files,
        lock: &Lock,
    ) -> Result<Self, Failure> {
        let lease_id = place.kept.id;
        // Counted from before the question: rather too early than too late.
        let started = now();
        let info = ask(node, lease_id, Request::LeaseQuery(lease_id))?;
        let watch = Watch::new(&info, started);
        let ways = ways(&info, place.transport)?;
        let record = |device, nvmeof| Record {
            lease_id: lease_id.to_string(),
            device,
            keeper_pid: std::process::id(),
            nvmeof,
        };
        // Before there is a connection: who ends this process now leaves one that can be found. What an earlier
        // keeper has recorded says the same, and its device.
        if let (Some(target), None) = (target_of(&ways), files.read()?) {
            lock.write(&record(None, Some(target)))?;
        }
        let (mut device, path) = Device::attach(node, lease_id, ways)?;
        let record = record(Some(path.clone()), device.target().cloned());
        match lock.write(&record).and_then(|()| open_ears(files)) {
            Ok(ears) => Ok(Self {
                device,
                path,
                ears,
                watch,
                keys: KeyChange::default(),
            }),
            Err(failure) => {
                log_failure("the device could not be kept", &device.detach());
                Err(failure)
            }
        }
    }

    /// The connection that is open goes on whatever comes of this.
    pub(super) fn follow_keys(&mut self, info: &LeaseInfo) {
        self.keys.follow(&self.device, info);
    }

    /// Whether the device went by itself.
    pub(super) fn is_gone(&mut self) -> bool {
        !self.keys.is_under_way() && self.device.is_gone()
    }

    /// Takes the device away, on request: it may be asked for again.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        if self.keys.settle(KEYS_WITHIN) {
            return Err(Failure::new(
                Exit::Other,
                RefusalClass::Transient,
                "Busy",
                "a connection with the lease's new keys is being made; try again".to_owned(),
            ));
        }
        self.device.detach()
    }

    /// Takes the device away for good, however long that takes.
    pub(super) fn detach_at_last(&mut self) -> Result<(), Failure> {
        if !self.keys.is_under_way() {
            return self.device.detach();
        }
        log_failure("not detached yet", &self.device.detach());
        log("a connection that is being made has to end, too");
        self.keys.settle(Duration::MAX);
        self.device.detach()
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

fn target_of(ways: &[Way<'_>]) -> Option<Target> {
    ways.iter().find_map(|way| match way {
        Way::Nvmeof(binding, _) => Some(Target::from(*binding)),
        Way::Udp => None,
    })
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
