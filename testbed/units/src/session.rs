//! The protocol between a client and its units.
//!
//! Over the lease's socket the client gets one frame: the numbers of the units, with a descriptor. Over that
//! descriptor it sends requests of 12 bytes: `u32` unit │ `u64` to add. The answer is the counter's new value
//! as `u64`, or [`NOT_YOURS`] (little endian). When the lease ends, the client reads the end of the stream.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{fs::FileExt, net::UnixStream},
    },
};

use fabricbios_contract::Part;
use fabricbios_lease::{BootTime, Placement, StepError};
use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode,
    time::{ClockId, clock_gettime},
};

/// The answer about a unit that the lease does not have.
pub(crate) const NOT_YOURS: u64 = u64::MAX;

/// Bytes of a question.
const QUESTION: usize = 12;

/// The units of one lease.
#[derive(Debug)]
pub(crate) struct Units(BTreeMap<u32, File>);

impl Units {
    /// Uses only the descriptor of the part: the store may be in another process.
    pub(crate) fn of(part: &Part) -> Result<Self, StepError> {
        let (Placement::Units { numbers, .. }, Some(directory)) =
            (&part.placement, &part.descriptor)
        else {
            let why = format!("{part:?} is no part with units");
            return Err(StepError::new("open units", why));
        };
        let open = |&number: &u32| {
            let name = number.to_string();
            let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
            let opened = openat(directory.as_fd(), name.as_str(), flags, Mode::empty());
            opened
                .map(|file| (number, File::from(file)))
                .map_err(|errno| {
                    let why = format!("unit {number}: {errno}");
                    StepError::new("open units", why).with_errno(errno as i32)
                })
        };
        numbers.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    /// Leases that share a unit lock and write the same file.
    pub(crate) fn add(&self, number: u32, more: u64) -> io::Result<u64> {
        let Some(unit) = self.0.get(&number) else {
            return Ok(NOT_YOURS);
        };
        unit.lock()?;
        let mut counter = [0; 8];
        let added = unit.read_exact_at(&mut counter, 0).and_then(|()| {
            let sum = u64::from_le_bytes(counter).wrapping_add(more);
            unit.write_all_at(&sum.to_le_bytes(), 0).map(|()| sum)
        });
        unit.unlock()?;
        added
    }
}

/// Answers until the client is gone, or `add` reports that the lease has ended.
pub(crate) fn serve(
    mut session: &UnixStream,
    add: impl Fn(u32, u64) -> Option<io::Result<u64>>,
) -> io::Result<()> {
    let mut question = [0; QUESTION];
    loop {
        session.read_exact(&mut question)?;
        let [a, b, c, d, more @ ..] = question;
        match add(u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(more)) {
            Some(sum) => session.write_all(&sum?.to_le_bytes())?,
            None => return Ok(()),
        }
    }
}

/// The time on the clock of deadlines.
pub(crate) fn now() -> BootTime {
    // The call fails only if the kernel does not have the clock; then every lease counts as ended.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    let nanos = now.map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
    BootTime(nanos.unwrap_or(u64::MAX))
}
