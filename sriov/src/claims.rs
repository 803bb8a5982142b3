//! What leases have that no other lease of the node may have: addresses, and virtual functions.
//!
//! All stores of a node share one table. It is read from the records once, at the start, so that a grant reads neither
//! the directory nor the records of other leases. Its lock is held for a look-up only, or, while a record is damaged, for
//! reading the records of its kind.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindError, StepError};
use fabricbios_wire::{LeaseId, MacAddress, PciFunction};

use crate::{
    macvlan,
    records::{Record, Records, random_mac},
    vf,
};

/// See the module.
#[derive(Debug)]
pub struct Claims {
    directory: PathBuf,
    table: Mutex<Table>,
}

/// The claims of the leases on record.
pub(crate) type Leases = BTreeMap<LeaseId, Claim>;

#[derive(Debug, Default)]
struct Table {
    leases: Leases,
    /// The kinds, by the suffix of their records, of which a record is damaged: what its lease has is unknown.
    damaged: BTreeSet<&'static str>,
}

/// What one lease has for itself alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) mac: MacAddress,
    /// `None` for a macvlan.
    pub(crate) function: Option<PciFunction>,
}

impl Claims {
    /// The claims on record in this directory, which may be missing. One process has one table of a directory.
    #[must_use]
    pub fn of(directory: impl Into<PathBuf>) -> Self {
        let claims = Self {
            directory: directory.into(),
            table: Mutex::default(),
        };
        claims.open::<macvlan::MacvlanRecord>();
        claims.open::<vf::VfRecord>();
        claims
    }

    fn open<R: Record>(&self) {
        let mut table = self.table();
        if let Err(error) = self.read::<R>(&mut table) {
            tracing::error!(%error, "a damaged record: there are no new leases of its kind");
            table.damaged.insert(R::SUFFIX);
        }
    }

    /// Reads the records of a kind that can be read. Fails if another one cannot be.
    fn read<R: Record>(&self, table: &mut Table) -> Result<(), StepError> {
        let mut read = Ok(());
        for found in self.records::<R>().all()? {
            match found {
                Ok((lease, record)) => drop(table.leases.insert(lease, record.claim())),
                Err(error) => read = Err(error),
            }
        }
        read
    }

    pub(crate) fn records<R: Record>(&self) -> Records<R> {
        Records::at(&self.directory)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the address of a new lease, different from those of all other leases on the node, since interfaces on
    /// one wire must differ, and writes the record that `choose` and then `complete` return. `choose` gets the address
    /// and the claims of the other leases, and asks the kernel nothing.
    ///
    /// An address that a tenant asks for is also none of an interface of the node. Addresses that are made up here need
    /// no such look: 46 of their bits are random.
    pub(crate) fn claim<R: Record>(
        &self,
        lease: LeaseId,
        wanted: Option<MacAddress>,
        sysfs: &Tree,
        choose: impl FnOnce(MacAddress, &Leases) -> Result<R, BindError>,
        complete: impl FnOnce(R) -> Result<R, BindError>,
    ) -> Result<R, BindError> {
        let mac = wanted.map_or_else(random_mac, Ok);
        let mac = mac.map_err(BindError::Failed)?;
        if !mac.is_of_one_interface() {
            let why = format_args!("{mac} is not the address of one interface");
            return Err(refuse(why));
        }
        let record = self.take(lease, mac, choose)?;
        let of_node = wanted.map_or(Ok(()), |mac| refuse_of_node(mac, sysfs));
        let written = of_node.and_then(|()| complete(record)).and_then(|record| {
            let written = self.records().write(lease, &record);
            written.map(|()| record).map_err(BindError::Failed)
        });
        if written.is_err() {
            self.table().leases.remove(&lease);
        }
        written
    }

    fn take<R: Record>(
        &self,
        lease: LeaseId,
        mac: MacAddress,
        choose: impl FnOnce(MacAddress, &Leases) -> Result<R, BindError>,
    ) -> Result<R, BindError> {
        let mut table = self.table();
        if table.damaged.contains(R::SUFFIX) {
            // The lease may have ended meanwhile, or the operator has removed its record.
            self.read::<R>(&mut table).map_err(BindError::Failed)?;
            table.damaged.remove(R::SUFFIX);
        }
        if table.leases.values().any(|it| it.mac == mac) {
            return Err(had(mac, "another lease"));
        }
        let record = choose(mac, &table.leases)?;
        table.leases.insert(lease, record.claim());
        Ok(record)
    }

    /// The record of a lease. Without a record, which the operator may have removed, the lease has no claim either.
    pub(crate) fn find<R: Record>(&self, lease: LeaseId) -> Result<Option<R>, StepError> {
        let found = self.records().find(lease)?;
        if found.is_none() {
            self.table().leases.remove(&lease);
        }
        Ok(found)
    }

    /// Removes the record of a lease and then its claim, if there are any. Waits while another process or thread holds
    /// the record.
    pub(crate) fn remove<R: Record>(&self, lease: LeaseId) -> Result<(), StepError> {
        self.records::<R>().remove(lease)?;
        self.table().leases.remove(&lease);
        Ok(())
    }
}

/// Refuses the address of an interface in the node's network namespace.
fn refuse_of_node(mac: MacAddress, sysfs: &Tree) -> Result<(), BindError> {
    let listed = sysfs.list("class/net");
    let names =
        listed.map_err(|error| BindError::Failed(StepError::new("list interfaces", error)))?;
    let text = mac.to_string();
    // An interface that was just removed has no address.
    let has = |name: &String| {
        let its = sysfs.read(format!("class/net/{name}/address"));
        its.is_ok_and(|its| its == text)
    };
    match names.into_iter().find(has) {
        Some(name) => Err(had(mac, &format!("interface {name} of the node"))),
        None => Ok(()),
    }
}

fn had(mac: MacAddress, holder: &str) -> BindError {
    refuse(format_args!(
        "{mac}: {holder} has it; ask for another one, or for none"
    ))
}

fn refuse(why: std::fmt::Arguments<'_>) -> BindError {
    BindError::Refused(StepError::new("claim address", why))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::{fs, path::Path, sync::Barrier};

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::records::{MACVLAN, VF};

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    /// A record of either kind.
    #[derive(Serialize, Deserialize)]
    struct Fake<const IS_FUNCTION: bool> {
        mac: MacAddress,
    }

    type Macvlan = Fake<false>;

    impl<const IS_FUNCTION: bool> Record for Fake<IS_FUNCTION> {
        const SUFFIX: &'static str = if IS_FUNCTION { VF } else { MACVLAN };

        fn claim(&self) -> Claim {
            Claim {
                mac: self.mac,
                function: None,
            }
        }
    }

    fn sysfs(directory: &Path) -> Tree {
        let interface = directory.join("sys/class/net/eth0");
        fs::create_dir_all(&interface).unwrap();
        fs::write(interface.join("address"), "02:00:00:00:00:09\n").unwrap();
        Tree::new(directory.join("sys"))
    }

    fn claim<const IS_FUNCTION: bool>(
        claims: &Claims,
        lease: u128,
        wanted: Option<MacAddress>,
        sysfs: &Tree,
    ) -> Result<Fake<IS_FUNCTION>, BindError> {
        claims.claim(LeaseId(lease), wanted, sysfs, |mac, _| Ok(Fake { mac }), Ok)
    }

    #[test]
    fn of_leases_that_want_one_address_at_once_one_gets_it() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let claims = Claims::of(directory.path());
        let start = Barrier::new(8);
        let wants = |lease: u128| {
            start.wait();
            match lease % 2 {
                0 => claim::<false>(&claims, lease, Some(MAC), &sysfs).map(drop),
                _ => claim::<true>(&claims, lease, Some(MAC), &sysfs).map(drop),
            }
        };
        let wants = &wants;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let claims: Vec<_> = (1..=8).map(|it| scope.spawn(move || wants(it))).collect();
            claims.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 1);
        let mut refused = outcomes.iter().filter_map(|it| it.as_ref().err());
        assert!(refused.all(|it| matches!(it, BindError::Refused(_))));
    }

    #[test]
    fn an_address_of_the_node_and_one_of_a_group_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let claims = Claims::of(directory.path());
        for (mac, why) in [
            ([2, 0, 0, 0, 0, 9], "eth0"),
            ([3, 0, 0, 0, 0, 1], "one interface"),
        ] {
            let claimed = claim::<false>(&claims, 1, Some(MacAddress(mac)), &sysfs);
            let Err(BindError::Refused(error)) = claimed else {
                panic!("{mac:?} was given away");
            };
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_grant_that_failed_keeps_no_address() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let claims = Claims::of(directory.path());
        let choose = |mac, _: &Leases| Ok(Macvlan { mac });
        let fails = |_| Err(BindError::Failed(StepError::new("complete", "on purpose")));
        let failed = claims.claim(LeaseId(1), Some(MAC), &sysfs, choose, fails);
        assert!(failed.is_err());
        // The directory of the records is away.
        let away = directory.path().with_extension("away");
        fs::rename(directory.path(), &away).unwrap();
        let failed = claim::<false>(&claims, 1, Some(MAC), &Tree::new(away.join("sys")));
        assert!(matches!(failed, Err(BindError::Failed(_))));
        fs::rename(&away, directory.path()).unwrap();
        assert!(claim::<false>(&claims, 2, Some(MAC), &sysfs).is_ok());
        claims.remove::<Macvlan>(LeaseId(2)).unwrap();
        assert!(claim::<true>(&claims, 3, Some(MAC), &sysfs).is_ok());
    }

    #[test]
    fn a_damaged_record_stops_new_leases_of_its_kind_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let name = format!("{}.macvlan", LeaseId(7));
        let damaged = directory.path().join(&name);
        for (other, text) in [("notes.txt", "no record"), ("x.vf", "")] {
            fs::write(directory.path().join(other), text).unwrap();
        }
        for its_lease_ends in [true, false] {
            fs::write(&damaged, "{\"mac\":").unwrap();
            let claims = Claims::of(directory.path());
            assert!(claim::<true>(&claims, 1, None, &sysfs).is_ok());
            let Err(BindError::Failed(error)) = claim::<false>(&claims, 2, None, &sysfs) else {
                panic!("its lease may have the same");
            };
            assert!(error.to_string().contains(&name), "{error}");
            assert!(claims.records::<Macvlan>().readable().unwrap().is_empty());
            match its_lease_ends {
                true => claims.remove::<Macvlan>(LeaseId(7)).unwrap(),
                false => fs::remove_file(&damaged).unwrap(),
            }
            assert!(claim::<false>(&claims, 2, None, &sysfs).is_ok());
            let records = claims.records::<Macvlan>().readable().unwrap();
            assert_eq!(records.len(), 1);
            claims.remove::<Macvlan>(LeaseId(2)).unwrap();
        }
    }
}
