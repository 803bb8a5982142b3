//! Records which lease has which units.
//!
//! ```text
//! DIRECTORY/units/3          the unit: a counter of 8 bytes
//! DIRECTORY/leases/ID/3      the same file under a second name: lease ID has unit 3
//! DIRECTORY/leases/ID/shared lease ID shares its units
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Custody, Lookup, Placement, Proof, StepError,
};
use fabricbios_wire::LeaseId;

use crate::{failed, leases_in, lock, names_in, of_lease, unless_gone};

const SHARED: &str = "shared";

/// The store of units, see the module.
#[derive(Debug)]
pub struct UnitStore {
    units: PathBuf,
    leases: PathBuf,
    sharers: usize,
    /// The released leases. The lock is held while names are made or removed.
    released: Mutex<Custody<()>>,
    _lock: File,
}

impl UnitStore {
    /// Takes the directory, and makes the missing ones of the `count` units. Up to `sharers` leases may share a unit.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn open(directory: &Path, count: u32, sharers: usize) -> io::Result<Self> {
        let (units, leases) = (directory.join("units"), directory.join("leases"));
        fs::create_dir_all(&units)?;
        fs::create_dir_all(&leases)?;
        let lock = lock(directory)?;
        for number in 0..count {
            let unit = OpenOptions::new()
                .append(true)
                .create(true)
                .open(units.join(number.to_string()))?;
            unit.set_len(8)?;
        }
        Ok(Self {
            units,
            leases,
            sharers,
            released: Mutex::default(),
            _lock: lock,
        })
    }

    fn turn(&self) -> MutexGuard<'_, Custody<()>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, lease: LeaseId) -> PathBuf {
        of_lease(&self.leases, lease)
    }

    /// Checks that no unit belongs to two leases that do not share it; the table should never order that.
    fn check_free(&self, numbers: &[u32], shared: bool) -> Result<(), StepError> {
        for number in numbers {
            let has = |lease: &PathBuf| lease.join(number.to_string()).exists();
            let leases = leases_in(&self.leases)?.into_iter();
            let others: Vec<PathBuf> = leases.map(|it| self.of(it)).filter(has).collect();
            let all_share = shared && others.iter().all(|it| it.join(SHARED).exists());
            if !others.is_empty() && (!all_share || others.len() >= self.sharers) {
                let why = format!("unit {number} is that of {others:?}");
                return Err(StepError::new("claim units", why));
            }
        }
        Ok(())
    }

    fn make(&self, lease: LeaseId, placement: &Placement) -> Result<(), BindError> {
        let Placement::Units { numbers, shared } = placement else {
            let why = format!("{placement:?} is no set of units");
            return Err(BindError::Failed(StepError::new("claim units", why)));
        };
        self.check_free(numbers, *shared)
            .map_err(BindError::Failed)?;
        let directory = self.of(lease);
        let made = fs::create_dir(&directory).and_then(|()| {
            if *shared {
                File::create(directory.join(SHARED))?;
            }
            numbers.iter().map(u32::to_string).try_for_each(|number| {
                fs::hard_link(self.units.join(&number), directory.join(number))
            })
        });
        made.map_err(|error| {
            let error = failed("claim units", &directory, &error);
            match unless_gone(fs::remove_dir_all(&directory)) {
                Ok(()) => BindError::Failed(error),
                Err(_stays) => BindError::Stranded(error),
            }
        })
    }

    /// Sets a unit to 0 once its last lease gives it back.
    fn give_back(&self, its: &Path, number: &str) -> io::Result<()> {
        let unit = self.units.join(number);
        let (ours, found) = (fs::metadata(its)?, fs::metadata(&unit)?);
        if (ours.dev(), ours.ino()) != (found.dev(), found.ino()) {
            let why = format!("{} is another file than the lease had", unit.display());
            return Err(io::Error::other(why));
        }
        // One name is the unit's own, one this lease's.
        if found.nlink() == 2 {
            let mut unit = OpenOptions::new().write(true).open(its)?;
            unit.write_all(&[0; 8])?;
        }
        fs::remove_file(its)
    }
}

impl Store for UnitStore {
    /// Units are made clean when they are given back.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let turn = self.turn();
        if turn.find(lease) == Lookup::Released {
            return Err(BindError::Cancelled);
        }
        let directory = self.of(lease);
        if !order.adopts && !directory.exists() {
            self.make(lease, &order.placement)?;
        }
        let opened = File::open(&directory);
        let opened = opened.map_err(|error| failed("open units", &directory, &error));
        Ok(Part {
            descriptor: Some(Arc::new(opened.map_err(BindError::Failed)?.into())),
            ..Part::at(order.placement.clone())
        })
    }

    /// Nothing to do: after a reboot the leases have ended, even if an older journal has them.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        let _turn = self.turn();
        let directory = self.of(binding_id.lease_id);
        let gone = unless_gone(fs::remove_dir_all(&directory));
        gone.map_err(|error| failed("forget units", &directory, &error))
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let mut turn = self.turn();
        let directory = self.of(binding_id.lease_id);
        let units = match names_in(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| failed("list units", &directory, &error))?,
        };
        for number in units.iter().filter(|it| *it != SHARED) {
            progress();
            let its = directory.join(number);
            let clean = self.give_back(&its, number);
            clean.map_err(|error| failed("clean unit", &its, &error))?;
        }
        let gone = unless_gone(fs::remove_dir_all(&directory));
        gone.map_err(|error| failed("give units back", &directory, &error))?;
        turn.release(binding_id.lease_id);
        Ok(Proof::nothing_to_clean("units keep no bytes"))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        leases_in(&self.leases)
    }

    /// Never reports anything: this store always counts as healthy.
    fn tell_condition(&self, _tell: TellCondition) {}
}
