//! The calls of device-mapper that a pool needs: devices with one linear target
//! (`docs/decisions/0007-device-mapper-by-hand.md`).

mod encoding;
mod ioctl;

use std::fs::{File, OpenOptions};
use std::io;
use std::thread;
use std::time::Duration;

use encoding::{ACTIVE_PRESENT, Answer, BUFFER_FULL, HANDS_OFF, READ_ONLY, Request, STATUS_TABLE};
pub(crate) use encoding::{DeviceNumber, Target};
use ioctl::{Command, call};
use serde::{Deserialize, Serialize};

use crate::error::{At, Error};

const CONTROL: &str = "/dev/mapper/control";
const DATA_BYTES: usize = 16 << 10;
const DATA_BYTES_MAX: usize = 16 << 20;
/// Number of tries to remove a device that is busy. udev opens every new device for a moment, and no event reports when
/// udev has closed it.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The open control device.
#[derive(Debug)]
pub(crate) struct Control(File);

/// A device to make: an extent of another device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) target: Target,
    pub(crate) read_only: bool,
}

/// An existing device.
#[derive(Clone, Debug)]
pub(crate) struct MappedDevice {
    pub(crate) uuid: String,
    pub(crate) number: DeviceNumber,
    /// Whether the device has an active table. If so, it may have been written to.
    pub(crate) is_active: bool,
}

impl Control {
    pub(crate) fn open() -> Result<Self, Error> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let remedy = ": devices are carved with device-mapper (modprobe dm-mod, as root)";
        file.map(Self).at(CONTROL).advise(remedy)
    }

    /// All devices whose names start with this prefix.
    pub(crate) fn devices(&self, name_start: &str) -> Result<Vec<MappedDevice>, Error> {
        let answer = self.ask("list", Command::ListDevices, &Request::default())?;
        let names = Answer(&answer).names().into_iter();
        let mut devices = Vec::new();
        for name in names.filter(|name| name.starts_with(name_start)) {
            let request = Request {
                name: &name,
                ..Request::default()
            };
            devices.extend(self.device(&request)?);
        }
        Ok(devices)
    }

    /// The device with this UUID, if it exists. The kernel answers this and the other queries from memory
    /// (`__dev_status`, drivers/md/dm-ioctl.c), even for a suspended device.
    pub(crate) fn find(&self, uuid: &str) -> Result<Option<MappedDevice>, Error> {
        self.device(&by_uuid(uuid))
    }

    fn device(&self, request: &Request<'_>) -> Result<Option<MappedDevice>, Error> {
        match self.ask("status", Command::Status, request) {
            Ok(answer) => {
                let answer = Answer(&answer);
                Ok(Some(MappedDevice {
                    uuid: answer.uuid(),
                    number: answer.device(),
                    is_active: answer.flags() & ACTIVE_PRESENT != 0,
                }))
            }
            Err(error) if error.errno() == Some(libc::ENXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The active table.
    pub(crate) fn table(&self, uuid: &str) -> Result<Vec<Target>, Error> {
        let request = Request {
            flags: STATUS_TABLE,
            ..by_uuid(uuid)
        };
        let answer = self.ask("table", Command::TableStatus, &request)?;
        let targets = Answer(&answer).targets();
        let targets = targets.ok_or_else(|| io::Error::other("the answer makes no sense"));
        targets.during(format_args!("device-mapper: table {uuid}"))
    }

    /// Makes a device with one target. A failure leaves no device behind, if the removal succeeds. The kernel opens the
    /// underlying device and may wait for it.
    pub(crate) fn make(&self, slice: &Slice) -> Result<(), Error> {
        let Slice {
            name,
            uuid,
            target,
            read_only,
        } = slice;
        let flags = if *read_only { READ_ONLY } else { 0 };
        let create = Request {
            name,
            flags,
            ..by_uuid(uuid)
        };
        self.ask("create", Command::Create, &create)?;
        let filled = self.fill(uuid, target, flags);
        if filled.is_err()
            && let Err(error) = self.remove_patiently(uuid)
        {
            tracing::warn!(%error, "a device that failed cannot be removed");
        }
        filled
    }

    fn fill(&self, uuid: &str, target: &Target, flags: u32) -> Result<(), Error> {
        let load = Request {
            flags,
            targets: 1,
            data: target.encode(),
            ..by_uuid(uuid)
        };
        let resume = Request {
            flags,
            event: HANDS_OFF,
            ..by_uuid(uuid)
        };
        self.ask("load", Command::LoadTable, &load)?;
        self.ask("resume", Command::Suspend, &resume)?;
        Ok(())
    }

    /// Removes a device if it exists. If another program has it open, tries again for a short time.
    pub(crate) fn remove_patiently(&self, uuid: &str) -> Result<(), Error> {
        let request = Request {
            event: HANDS_OFF,
            ..by_uuid(uuid)
        };
        for tries_left in (0..BUSY_TRIES).rev() {
            match self.ask("remove", Command::Remove, &request) {
                Err(error) if error.errno() == Some(libc::EBUSY) && tries_left > 0 => {
                    thread::sleep(BUSY_PAUSE);
                }
                Err(error) if error.errno() != Some(libc::ENXIO) => return Err(error),
                _ => break,
            }
        }
        Ok(())
    }

    /// Makes a call. Repeats a query with a larger buffer until the answer fits.
    fn ask(&self, step: &str, command: Command, request: &Request<'_>) -> Result<Vec<u8>, Error> {
        let asked = format!("device-mapper: {step} {}{}", request.name, request.uuid);
        let asked = asked.trim_end();
        let mut data_bytes = DATA_BYTES;
        loop {
            let mut bytes = request.encode(data_bytes);
            call(&self.0, command, &mut bytes).during(asked)?;
            if Answer(&bytes).flags() & BUFFER_FULL == 0 {
                return Ok(bytes);
            }
            data_bytes *= 4;
            if data_bytes > DATA_BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory)).during(asked);
            }
        }
    }
}

fn by_uuid(uuid: &str) -> Request<'_> {
    Request {
        uuid,
        ..Request::default()
    }
}
