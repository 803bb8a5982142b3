//! What a keeper has while a device is attached.

use std::{path::PathBuf, time::Duration};

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
            }),
            Err(failure) => {
                log_failure("the device could not be kept", &device.detach());
                Err(failure)
            }
        }
    }

    /// The connection that is open goes on whatever comes of this.
    pub(super) fn follow_keys(&self, info: &LeaseInfo) {
        match self.device.follow_keys(info) {
            Ok(false) => {}
            Ok(true) => log("the lease has new keys; the kernel has them too"),
            Err(failure) => log(&format!(
                "the kernel did not take the lease's new keys, and cannot connect again without them: {}",
                failure.message()
            )),
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
