//! Faults and settings: small files in the state directory.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    sync::Mutex,
    time::Duration,
};

use crate::{Directory, lock};

/// The settings. Each is a file of the state directory; an empty file, or `0`, is off. `README.md` has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    /// Names of the vendors whose libraries find no device: `nvidia`, `amd`.
    Absent,
    /// Bytes of each device's memory. A change takes effect when no process has the device open.
    Memory,
    /// The id of a process that NVML lists, and optionally the bytes that it seems to use.
    Busy,
    /// Bytes that seem to be in use by no process, of a device or of each partition.
    Foreign,
    /// The NVIDIA device is in MIG mode, with this many partitions (1 to 7).
    Mig,
    /// The critical XID error that NVML reports once for each change.
    Xid,
    /// Uncorrected ECC errors.
    Ecc,
    /// The device needs a reset.
    ResetRequired,
    /// The memory of processes that end does not come back.
    Lost,
    /// Milliseconds for which the memory of a process that has ended is not free.
    Lingering,
    /// The device has fallen off the bus.
    Gone,
    /// Calls of NVML do not return.
    HangNvml,
    /// The end of a context, and of a process that has one, does not return.
    HangTeardown,
    /// Kernels do not end.
    HangLaunch,
    /// This many bytes at the end of the memory seem free and cannot be allocated.
    ShortScrub,
    /// Bytes of a device's memory that a context takes.
    Context,
    /// Bytes that NVML counts as a device's and that the driver keeps.
    Reserved,
}

impl Knob {
    /// All knobs.
    pub const ALL: [Self; 17] = [
        Self::Absent,
        Self::Memory,
        Self::Busy,
        Self::Foreign,
        Self::Mig,
        Self::Xid,
        Self::Ecc,
        Self::ResetRequired,
        Self::Lost,
        Self::Lingering,
        Self::Gone,
        Self::HangNvml,
        Self::HangTeardown,
        Self::HangLaunch,
        Self::ShortScrub,
        Self::Context,
        Self::Reserved,
    ];

    /// The name of the knob's file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Memory => "memory",
            Self::Busy => "busy",
            Self::Foreign => "foreign",
            Self::Mig => "mig",
            Self::Xid => "xid",
            Self::Ecc => "ecc",
            Self::ResetRequired => "reset-required",
            Self::Lost => "lost",
            Self::Lingering => "lingering",
            Self::Gone => "gone",
            Self::HangNvml => "hang-nvml",
            Self::HangTeardown => "hang-teardown",
            Self::HangLaunch => "hang-launch",
            Self::ShortScrub => "short-scrub",
            Self::Context => "context",
            Self::Reserved => "reserved",
        }
    }
}

/// How often a call that hangs, or waits for a change, looks again.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// A knob's text and the time when it was written. Two values are equal as long as the knob was not written in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The text.
    pub text: String,
    written: (i64, i64),
}

/// The open files of all knobs. They stay open, so that a process that has given up the right to open files can still
/// read them.
#[derive(Debug)]
pub struct Knobs {
    directory: Directory,
    files: Vec<Mutex<File>>,
}

impl Knobs {
    /// Opens the files; makes missing files, empty.
    ///
    /// # Errors
    /// A file cannot be opened or made.
    pub fn open(directory: &Directory) -> io::Result<Self> {
        let files = Knob::ALL.iter().map(|knob| {
            // Another user may have made the file so that others can only read it.
            let read_only = |_| File::open(directory.path().join(knob.name()));
            directory
                .open(knob.name())
                .or_else(read_only)
                .map(Mutex::new)
        });
        Ok(Self {
            directory: directory.clone(),
            files: files.collect::<io::Result<_>>()?,
        })
    }

    /// The text of a knob without surrounding white space, and the time when it was written.
    #[must_use]
    pub fn change(&self, knob: Knob) -> Change {
        let place = Knob::ALL.iter().position(|it| *it == knob);
        let Some(file) = place.and_then(|place| self.files.get(place)) else {
            return Change {
                text: String::new(),
                written: (0, 0),
            };
        };
        let mut file = lock(file);
        // The file was removed, or replaced by another file with this name.
        if file.metadata().is_ok_and(|it| it.nlink() == 0)
            && let Ok(now) = self.directory.open(knob.name())
        {
            *file = now;
        }
        let mut bytes = [0; 64];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]);
        let written = file.metadata();
        Change {
            text: text.trim().to_owned(),
            written: written.map_or((0, 0), |it| (it.mtime(), it.mtime_nsec())),
        }
    }

    /// The text of a knob.
    #[must_use]
    pub fn text(&self, knob: Knob) -> String {
        self.change(knob).text
    }

    /// Whether a knob is on.
    #[must_use]
    pub fn is_set(&self, knob: Knob) -> bool {
        !matches!(self.text(knob).as_str(), "" | "0")
    }

    /// The first number of a knob; 0 if there is none.
    #[must_use]
    pub fn number(&self, knob: Knob) -> u64 {
        let text = self.text(knob);
        let first = text.split_whitespace().next();
        first.and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// Blocks until the knob is off.
    pub fn hang(&self, knob: Knob) {
        while self.is_set(knob) {
            std::thread::sleep(LOOK);
        }
    }
}
