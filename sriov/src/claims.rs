//! What leases have that no other lease of the node may have: addresses, and virtual functions.
//!
//! All stores of a node share one table. It is read from the records once, at the start, so that a grant reads neither
//! the directory nor the records of other leases. Its lock is held for a look-up only.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
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
    /// The damaged records, with the suffix of their kind. What their leases have is unknown.
    damaged: BTreeSet<(&'static str, LeaseId)>,
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
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StepError> {
        let claims = Self {
            directory: directory.into(),
            table: Mutex::default(),
        };
        claims.read::<macvlan::Record>()?;
        claims.read::<vf::Record>()?;
        Ok(claims)
    }

    fn read<R: Record>(&self) -> Result<(), StepError> {
        let mut table = self.table();
        for (lease, record) in self.records::<R>().all()? {
            match record {
                Ok(record) => drop(table.leases.insert(lease, record.claim())),
                Err(error) => {
                    tracing::error!(%error, "a damaged record: there are no new leases of its kind");
                    table.damaged.insert((R::SUFFIX, lease));
                }
            }
        }
        Ok(())
    }

    /// The directory of the records.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
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
        self.look_at_damaged::<R>(&mut table)
            .map_err(BindError::Failed)?;
        if table.leases.values().any(|it| it.mac == mac) {
            return Err(had(mac, "another lease"));
        }
        let record = choose(mac, &table.leases)?;
        table.leases.insert(lease, record.claim());
        Ok(record)
    }

    /// Reads the damaged records of the kind again, as the operator may have removed them.
    fn look_at_damaged<R: Record>(&self, table: &mut Table) -> Result<(), StepError> {
        let of_kind = table.damaged.iter().filter(|(kind, _)| *kind == R::SUFFIX);
        for (kind, lease) in of_kind.copied().collect::<Vec<_>>() {
            if let Some(record) = self.records::<R>().find(lease)? {
                table.leases.insert(lease, record.claim());
            }
            table.damaged.remove(&(kind, lease));
        }
        Ok(())
    }

    /// Removes the record of a lease and then its claim, if there are any. Waits while another process or thread holds
    /// the record.
    pub(crate) fn remove<R: Record>(&self, lease: LeaseId) -> Result<(), StepError> {
        self.records::<R>().remove(lease)?;
        let mut table = self.table();
        table.leases.remove(&lease);
        table.damaged.remove(&(R::SUFFIX, lease));
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

    use std::{fs, sync::Barrier};

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::records::{MACVLAN, VF};

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    #[derive(Serialize, Deserialize)]
    struct Macvlan {
        mac: MacAddress,
    }

    impl Record for Macvlan {
        const SUFFIX: &'static str = MACVLAN;

        fn claim(&self) -> Claim {
            claim_of(self.mac)
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Function {
        mac: MacAddress,
    }

    impl Record for Function {
        const SUFFIX: &'static str = VF;

        fn claim(&self) -> Claim {
            claim_of(self.mac)
        }
    }

    fn claim_of(mac: MacAddress) -> Claim {
        let function = None;
        Claim { mac, function }
    }

    fn sysfs(directory: &Path) -> Tree {
        let interface = directory.join("sys/class/net/eth0");
        fs::create_dir_all(&interface).unwrap();
        fs::write(interface.join("address"), "02:00:00:00:00:09\n").unwrap();
        Tree::new(directory.join("sys"))
    }

    fn macvlan(
        claims: &Claims,
        lease: u128,
        wanted: Option<MacAddress>,
        sysfs: &Tree,
    ) -> Result<Macvlan, BindError> {
        claims.claim(
            LeaseId(lease),
            wanted,
            sysfs,
            |mac, _| Ok(Macvlan { mac }),
            Ok,
        )
    }

    fn function(
        claims: &Claims,
        lease: u128,
        wanted: Option<MacAddress>,
        sysfs: &Tree,
    ) -> Result<Function, BindError> {
        claims.claim(
            LeaseId(lease),
            wanted,
            sysfs,
            |mac, _| Ok(Function { mac }),
            Ok,
        )
    }

    #[test]
    fn of_leases_that_want_one_address_at_once_one_gets_it() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let claims = Claims::open(directory.path()).unwrap();
        let start = Barrier::new(8);
        let claim = |lease: u128| {
            start.wait();
            match lease % 2 {
                0 => macvlan(&claims, lease, Some(MAC), &sysfs).map(drop),
                _ => function(&claims, lease, Some(MAC), &sysfs).map(drop),
            }
        };
        let claim = &claim;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let claims: Vec<_> = (1..=8).map(|it| scope.spawn(move || claim(it))).collect();
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
        let claims = Claims::open(directory.path()).unwrap();
        for (mac, why) in [
            ([2, 0, 0, 0, 0, 9], "eth0"),
            ([3, 0, 0, 0, 0, 1], "one interface"),
        ] {
            let claimed = macvlan(&claims, 1, Some(MacAddress(mac)), &sysfs);
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
        let claims = Claims::open(directory.path()).unwrap();
        let choose = |mac, _: &Leases| Ok(Macvlan { mac });
        let fails = |_| Err(BindError::Failed(StepError::new("complete", "on purpose")));
        let failed = claims.claim(LeaseId(1), Some(MAC), &sysfs, choose, fails);
        assert!(failed.is_err());
        // The directory of the records is away.
        let away = directory.path().with_extension("away");
        fs::rename(directory.path(), &away).unwrap();
        let failed = macvlan(&claims, 1, Some(MAC), &Tree::new(away.join("sys")));
        assert!(matches!(failed, Err(BindError::Failed(_))));
        fs::rename(&away, directory.path()).unwrap();
        assert!(macvlan(&claims, 2, Some(MAC), &sysfs).is_ok());
        claims.remove::<Macvlan>(LeaseId(2)).unwrap();
        assert!(function(&claims, 3, Some(MAC), &sysfs).is_ok());
    }

    #[test]
    fn a_damaged_record_stops_new_leases_of_its_kind_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let damaged = [7, 8].map(|it| format!("{}.macvlan", LeaseId(it)));
        for (name, text) in [
            (&*damaged[0], "{\"mac\":"),
            (&*damaged[1], ""),
            ("notes.txt", "no record"),
            ("x.vf", ""),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let claims = Claims::open(directory.path()).unwrap();
        assert!(function(&claims, 1, None, &sysfs).is_ok());
        for name in &damaged {
            let Err(BindError::Failed(error)) = macvlan(&claims, 2, None, &sysfs) else {
                panic!("its lease may have the same");
            };
            assert!(error.to_string().contains(name), "{error}");
            assert!(claims.records::<Macvlan>().readable().unwrap().is_empty());
            // The lease ends, or the operator removes the file.
            match *name == damaged[0] {
                true => claims.remove::<Macvlan>(LeaseId(7)).unwrap(),
                false => fs::remove_file(directory.path().join(name)).unwrap(),
            }
        }
        assert!(macvlan(&claims, 2, None, &sysfs).is_ok());
        let records = claims.records::<Macvlan>().readable().unwrap();
        assert_eq!(records.len(), 1);
    }
}
