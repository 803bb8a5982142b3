//! The objects of the block daemon while a device is attached.

use std::{path::PathBuf, time::Duration};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, RefusalClass, Request};
use nix::time::{ClockId, clock_gettime};

use super::{
    super::lease::ask,
    attach_paths::{AttachPath, attach_paths},
    device::Device,
    events::EventSource,
    in_use,
    key_change::KeyChange,
    log::{log, log_failure},
    nvme_host::Target,
    record::{Files, Lock, Record},
    watch::Watch,
};
use crate::{
    args::AttachPlace,
    failure::{Exit, Failure},
};

/// An attached device, with the state of the block daemon that attached it.
pub(super) struct Attachment {
    pub(super) device: Device,
    pub(super) path: PathBuf,
    pub(super) events: EventSource,
    pub(super) watch: Watch,
    keys: KeyChange,
}

/// Shorter than the time for which `detach` waits for an answer.
const KEYS_WITHIN: Duration = Duration::from_secs(20);

impl Attachment {
    pub(super) fn new(
        node: &Node,
        place: &AttachPlace,
        files: &Files,
        lock: &Lock,
    ) -> Result<Self, Failure> {
        let lease_id = place.recorded.id;
        // Taken before the request, so that the assumed end of the lease is too early rather than too late.
        let started = now();
        let info = ask(node, lease_id, Request::LeaseQuery(lease_id))?;
        let watch = Watch::new(&info, started);
        let paths = attach_paths(&info, place.transport)?;
        let record = |device, nvmeof| Record {
            lease_id: lease_id.to_string(),
            device,
            daemon_pid: std::process::id(),
            nvmeof,
        };
        // Recorded before there is a connection, so that `detach` finds the connection if this process is killed. The
        // record of an earlier daemon has the same target, and its device.
        if let (Some(target), None) = (target_of(&paths), files.read()?) {
            lock.write(&record(None, Some(target)))?;
        }
        let (mut device, path) = Device::attach(node, lease_id, info.capacity, paths)?;
        let record = record(Some(path.clone()), device.target().cloned());
        match lock.write(&record).and_then(|()| open_events(files)) {
            Ok(events) => Ok(Self {
                device,
                path,
                events,
                watch,
                keys: KeyChange::default(),
            }),
            Err(failure) => {
                log_failure("the device could not be kept", &device.detach());
                Err(failure)
            }
        }
    }

    /// Follows new keys of the lease. A failure does not touch the open connection.
    pub(super) fn follow_keys(&mut self, info: &LeaseInfo) {
        self.keys.follow(&self.device, info);
    }

    /// Whether the device has disappeared.
    pub(super) fn is_gone(&mut self) -> bool {
        !self.keys.is_pending() && self.device.is_gone()
    }

    /// Detaches the device on request. After a failure the request may be repeated.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        if self.keys.wait(KEYS_WITHIN) {
            return Err(Failure::new(
                Exit::Other,
                RefusalClass::Transient,
                "Busy",
                "a connection with the lease's new keys is being made; try again".to_owned(),
            ));
        }
        self.device.detach()
    }

    /// Detaches the device, however long that takes.
    pub(super) fn detach_at_last(&mut self) -> Result<(), Failure> {
        if !self.keys.is_pending() {
            return self.device.detach();
        }
        log_failure("not detached yet", &self.device.detach());
        log("a connection that is being made has to end, too");
        self.keys.wait(Duration::MAX);
        self.device.detach()
    }

    /// Logs the user of a device that has to go, and writes its file system back within the given time.
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

fn target_of(paths: &[AttachPath<'_>]) -> Option<Target> {
    paths.iter().find_map(|attach_path| match attach_path {
        AttachPath::Nvmeof(binding, _) => Some(Target::from(*binding)),
        AttachPath::Udp => None,
    })
}

fn open_events(files: &Files) -> Result<EventSource, Failure> {
    let path = files.socket();
    EventSource::open(&path)
        .map_err(|error| Failure::local(&format!("listen at {}", path.display()), &error))
}

/// The boot-time clock, which goes on while the machine is suspended, as the lease does.
pub(super) fn now() -> Duration {
    // This fails only for an unknown clock, and Linux has this one since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}
