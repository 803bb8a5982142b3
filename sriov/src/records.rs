//! The records: a file for each lease, in a directory that a reboot empties. The stores write and remove the files.
//! Paths and the watchdog read them, also after the daemon has died.

use std::{
    fs::{self, File},
    io,
    marker::PhantomData,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::{BindError, StepError};
use fabricbios_wire::{LeaseId, MacAddress};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Suffixes of the records of virtual functions and of macvlans.
pub(crate) const VF: &str = ".vf";
pub(crate) const MACVLAN: &str = ".macvlan";

/// Held while a store chooses: all stores of this process choose one after the other, so no two leases get the same
/// address.
static CHOICE: Mutex<()> = Mutex::new(());

/// The record of a lease of one kind of network function.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// Suffix of the files.
    const SUFFIX: &'static str;
}

/// The part of every record that no two leases share.
#[derive(Deserialize)]
struct Addressed {
    mac: MacAddress,
}

/// The records of one kind. The records of both kinds are in one directory.
#[derive(Clone, Debug)]
pub(crate) struct Records<R> {
    directory: PathBuf,
    record: PhantomData<R>,
}

/// A record that cannot be removed while this exists.
#[derive(Debug)]
pub(crate) struct Held<R> {
    pub(crate) record: R,
    _lock: File,
}

impl<R: Record> Records<R> {
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            record: PhantomData,
        }
    }

    pub(crate) fn make_directory(&self) -> Result<(), StepError> {
        let made = fs::create_dir_all(&self.directory);
        made.map_err(|error| failed("make directory of records", &self.directory, &error))
    }

    pub(crate) fn find(&self, lease: LeaseId) -> Result<Option<R>, StepError> {
        read(&self.file(lease))
    }

    /// Locks and reads a record. `None`: there is no record, or the lease's release is at its last step.
    pub(crate) fn hold(&self, lease: LeaseId) -> Result<Option<Held<R>>, StepError> {
        let at = self.file(lease);
        let opened = match File::open(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed("read record", &at, &error))?,
        };
        if opened.try_lock_shared().is_err() {
            return Ok(None);
        }
        // The file may have been removed meanwhile: a release locks it first and then removes its name.
        let record = self.find(lease)?;
        Ok(record.map(|record| Held {
            record,
            _lock: opened,
        }))
    }

    /// Chooses the address of a new lease, different from all others on the node, since interfaces on one wire must
    /// differ. Writes the record that `make` returns. `make` gets the address and the records of the other leases of
    /// the kind.
    pub(crate) fn claim(
        &self,
        lease: LeaseId,
        wanted: Option<MacAddress>,
        sysfs: &Tree,
        make: impl FnOnce(MacAddress, &[(LeaseId, R)]) -> Result<R, BindError>,
    ) -> Result<R, BindError> {
        let refuse = |why: String| BindError::Refused(StepError::new("claim address", why));
        if let Some(mac) = wanted.filter(|it| !it.is_of_one_interface()) {
            return Err(refuse(format!("{mac} is not the address of one interface")));
        }
        let _one_by_one = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
        let mac = wanted.map_or_else(random_mac, Ok);
        let mac = mac.map_err(BindError::Failed)?;
        if let Some(holder) = self.holder_of(mac, sysfs).map_err(BindError::Failed)? {
            return Err(refuse(format!(
                "{mac}: {holder} has it; ask for another one, or for none"
            )));
        }
        // A damaged record is an error: the function of its lease is unknown.
        let others = self.all().and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let record = make(mac, &others.map_err(BindError::Failed)?)?;
        let at = self.file(lease);
        let new = at.with_extension("new");
        let text = serde_json::to_vec(&record).map_err(io::Error::other);
        let written = text
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &at));
        written.map_err(|error| BindError::Failed(failed("write record", &at, &error)))?;
        Ok(record)
    }

    /// Removes a record. Waits while another process or thread holds it. Succeeds also if there is no record.
    pub(crate) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        let removed = match File::open(&at) {
            Err(error) => unless_gone(Err(error)),
            Ok(file) => file.lock().and_then(|()| unless_gone(fs::remove_file(&at))),
        };
        removed.map_err(|error| failed("remove record", &at, &error))
    }

    /// All records that can be read. Damaged records are logged and skipped; their functions stay reserved, because
    /// such a function is not in the state of an unused one.
    pub(crate) fn readable(&self) -> Result<Vec<(LeaseId, R)>, StepError> {
        let found = self.all()?.filter_map(|found| {
            let told = found.inspect_err(|error| tracing::error!(%error, "a damaged record"));
            told.ok()
        });
        Ok(found.collect())
    }

    fn all(&self) -> Result<impl Iterator<Item = Result<(LeaseId, R), StepError>>, StepError> {
        Ok(self.names()?.into_iter().filter_map(|name| {
            let lease = name.strip_suffix(R::SUFFIX)?.parse().ok()?;
            // The record may have been removed meanwhile.
            let found = self.find(lease).transpose()?;
            Some(found.map(|record| (lease, record)))
        }))
    }

    /// The holder of the address: a lease of any kind in this directory, or an interface of the node.
    fn holder_of(&self, mac: MacAddress, sysfs: &Tree) -> Result<Option<String>, StepError> {
        for name in self.names()? {
            if ![VF, MACVLAN].iter().any(|it| name.ends_with(it)) {
                continue;
            }
            // A damaged record is reported elsewhere.
            let found: Result<Option<Addressed>, _> = read(&self.directory.join(name));
            if found.is_ok_and(|it| it.is_some_and(|it| it.mac == mac)) {
                return Ok(Some("another lease".to_owned()));
            }
        }
        let listed = sysfs.list("class/net");
        let names = listed.map_err(|error| StepError::new("list interfaces", error))?;
        let mac = mac.to_string();
        // An interface that was just removed has no address.
        let has = |name: &String| {
            let its = sysfs.read(format!("class/net/{name}/address"));
            its.is_ok_and(|its| its == mac)
        };
        let interface = names.into_iter().find(has);
        Ok(interface.map(|it| format!("interface {it} of the node")))
    }

    fn names(&self) -> Result<Vec<String>, StepError> {
        let name = |it: io::Result<fs::DirEntry>| Ok(it?.file_name().to_string_lossy().into());
        match fs::read_dir(&self.directory).and_then(|it| it.map(name).collect()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(|error| failed("list records", &self.directory, &error)),
        }
    }

    /// The rate of an interface's link, in bits per second. A driver reports no rate (`told`) while the link is down.
    /// Then this is the rate that an earlier start since the last reboot recorded: leases go on, and the link may come
    /// back.
    pub(crate) fn rate_of(&self, name: &str, told: Option<u64>) -> Result<Option<u64>, StepError> {
        let at = self.directory.with_file_name(format!("{name}.rate"));
        let Some(rate_bps) = told else {
            return read(&at);
        };
        let written = fs::write(&at, rate_bps.to_string());
        written.map_err(|error| failed("write rate", &at, &error))?;
        Ok(told)
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.directory.join(format!("{lease}{}", R::SUFFIX))
    }
}

fn read<T: DeserializeOwned>(at: &Path) -> Result<Option<T>, StepError> {
    let text = match fs::read(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| failed("read record", at, &error))?,
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| {
        let why = format_args!(
            "{}: {error}; end what its lease has, then remove the file",
            at.display()
        );
        StepError::new("read record", why)
    })
}

pub(crate) fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    let detail = format_args!("{}: {error}", at.display());
    StepError::new(step, detail).with_errno(error.raw_os_error())
}

/// Succeeds also if the file did not exist.
pub(crate) fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A locally administered address of a single interface (IEEE 802, U/L and I/G bits).
pub(crate) fn random_mac() -> Result<MacAddress, StepError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| StepError::new("make address", error))?;
    bytes[0] = bytes[0] & 0b1111_1100 | 0b10;
    Ok(MacAddress(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::sync::Barrier;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Macvlan {
        mac: MacAddress,
    }

    impl Record for Macvlan {
        const SUFFIX: &'static str = MACVLAN;
    }

    #[derive(Serialize, Deserialize)]
    struct Function {
        mac: MacAddress,
    }

    impl Record for Function {
        const SUFFIX: &'static str = VF;
    }

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    fn sysfs(directory: &Path) -> Tree {
        let interface = directory.join("sys/class/net/eth0");
        fs::create_dir_all(&interface).unwrap();
        fs::write(interface.join("address"), "02:00:00:00:00:09\n").unwrap();
        Tree::new(directory.join("sys"))
    }

    #[test]
    fn of_leases_that_want_one_address_at_once_one_gets_it() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let start = Barrier::new(8);
        let claim = |lease: u128| {
            start.wait();
            let (lease_id, wanted) = (LeaseId(lease), Some(MAC));
            match lease % 2 {
                0 => Records::at(directory.path())
                    .claim(lease_id, wanted, &sysfs, |mac, _| Ok(Macvlan { mac }))
                    .map(drop),
                _ => Records::at(directory.path())
                    .claim(lease_id, wanted, &sysfs, |mac, _| Ok(Function { mac }))
                    .map(drop),
            }
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let claims: Vec<_> = (1..=8).map(|it| scope.spawn(move || claim(it))).collect();
            claims.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 1);
        let refused = outcomes.iter().filter_map(|it| it.as_ref().err());
        assert!(
            refused
                .clone()
                .all(|it| matches!(it, BindError::Refused(_)))
        );
    }

    #[test]
    fn an_address_of_the_node_and_one_of_a_group_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        for (mac, why) in [
            ([2, 0, 0, 0, 0, 9], "eth0"),
            ([3, 0, 0, 0, 0, 1], "one interface"),
        ] {
            let records = Records::at(directory.path());
            let make = |mac, _: &[_]| Ok(Macvlan { mac });
            let claimed = records.claim(LeaseId(1), Some(MacAddress(mac)), &sysfs, make);
            let Err(BindError::Refused(error)) = claimed else {
                panic!("{mac:?} was given away");
            };
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_damaged_record_stops_new_leases_of_its_kind_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let sysfs = sysfs(directory.path());
        let damaged = format!("{}.macvlan", LeaseId(7));
        for (name, text) in [
            (&*damaged, "{\"mac\":"),
            ("notes.txt", "no record"),
            ("x.vf", ""),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let functions = Records::at(directory.path());
        let claimed = functions.claim(LeaseId(1), None, &sysfs, |mac, _| Ok(Function { mac }));
        assert!(claimed.is_ok());
        let macvlans = Records::<Macvlan>::at(directory.path());
        let claimed = macvlans.claim(LeaseId(2), None, &sysfs, |mac, _| Ok(Macvlan { mac }));
        let Err(BindError::Failed(error)) = claimed else {
            panic!("its lease may have the same");
        };
        assert!(error.to_string().contains(&damaged), "{error}");
        assert!(macvlans.readable().unwrap().is_empty());
        macvlans.remove(LeaseId(7)).unwrap();
        let claimed = macvlans.claim(LeaseId(2), None, &sysfs, |mac, _| Ok(Macvlan { mac }));
        assert!(claimed.is_ok());
        assert_eq!(macvlans.readable().unwrap().len(), 1);
    }
}
