//! The objects of the block daemon while a device is attached.

use std::{path::PathBuf, time::Duration};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, Request, Transport};
use nix::sys::signal::SigSet;

use crate::{
    device::AttachedDevice,
    error::AttachError,
    events::EventSource,
    in_use,
    key_change::KeyChange,
    log::{log, log_error},
    nvme::Target,
    paths::{AttachPath, attach_paths},
    record::{AttachRecord, LeaseFiles, RecordLock},
    watch::{Watch, now},
};

/// An attached device, with the state of the block daemon that attached it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) device: AttachedDevice,
    pub(crate) path: PathBuf,
    pub(crate) events: EventSource,
    pub(crate) watch: Watch,
    keys: KeyChange,
}

/// Shorter than the time for which `detach` waits for an answer.
const KEYS_WITHIN: Duration = Duration::from_secs(20);

impl Attachment {
    pub(crate) fn new(
        node: &Node,
        files: &LeaseFiles,
        wanted: Transport,
        ends: &SigSet,
        lock: &RecordLock,
    ) -> Result<Self, AttachError> {
        let lease_id = files.lease_id();
        // Taken before the request, so that the assumed end of the lease is too early rather than too late.
        let started = now();
        let info = node.lease(Request::LeaseQuery(lease_id))?;
        let watch = Watch::new(&info, started);
        let paths = attach_paths(&info, wanted)?;
        let record = |device, nvmeof| AttachRecord {
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
        let (mut device, path) = AttachedDevice::attach(node, lease_id, info.capacity, paths)?;
        let record = record(Some(path.clone()), device.target().cloned());
        match lock.write(&record).and_then(|()| open_events(files, ends)) {
            Ok(events) => Ok(Self {
                device,
                path,
                events,
                watch,
                keys: KeyChange::default(),
            }),
            Err(error) => {
                log_error("the device could not be kept", &device.detach());
                Err(error)
            }
        }
    }

    /// Follows new keys of the lease. A failure does not touch the open connection.
    pub(crate) fn follow_keys(&mut self, info: &LeaseInfo) {
        self.keys.follow(&self.device, info);
    }

    /// Whether the device has disappeared.
    pub(crate) fn is_gone(&mut self) -> bool {
        !self.keys.is_pending() && self.device.is_gone()
    }

    /// Detaches the device on request. After a failure the request may be repeated.
    pub(crate) fn detach(&mut self) -> Result<(), AttachError> {
        if self.keys.wait(KEYS_WITHIN) {
            return Err(AttachError::KeysChange);
        }
        self.device.detach()
    }

    /// Detaches the device, however long that takes.
    pub(crate) fn detach_at_last(&mut self) -> Result<(), AttachError> {
        if !self.keys.is_pending() {
            return self.device.detach();
        }
        log_error("not detached yet", &self.device.detach());
        log("waiting for the end of a connection that is being made");
        self.keys.wait(Duration::MAX);
        self.device.detach()
    }

    /// Logs the user of a device that has to go, and writes its file system back within the given time.
    pub(crate) fn warn_user(&self, write_back: Duration) {
        let device = self.path.display();
        if let Some(user) = in_use::user(&self.path) {
            let stored = match user.write_back(write_back) {
                Ok(()) => "everything that was written to the device is stored".to_owned(),
                Err(error) => format!("the last writes to the device may be lost ({error})"),
            };
            let remedy = user.remedy();
            log(&format!(
                "{device} is still {user} and is detached all the same: {stored}; {remedy}, the device only gives errors now"
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

fn open_events(files: &LeaseFiles, ends: &SigSet) -> Result<EventSource, AttachError> {
    let path = files.socket();
    EventSource::open(&path, ends)
        .map_err(|error| AttachError::local(format!("listen at {}", path.display()), error))
}
