//! Names and keys of NVMe hosts, as records of the journal.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context;
use fabricbios_lease::StepError;
use fabricbios_nvmet::{HOST_RECORD_BYTES_MAX, HostRecords, check_host_record};
use zeroize::Zeroizing;

use crate::{
    journal::{Change, Key, MESSAGE_BYTES_MAX, Seq, Writer},
    past::Past,
};

// A record that is too long for the journal would block all others.
const _: () = assert!(HOST_RECORD_BYTES_MAX + 64 < MESSAGE_BYTES_MAX as usize);

/// The directory in which an earlier version kept the hosts, one file each.
pub(crate) const EARLIER: &str = "nvme-hosts";

/// Suffix of a file that the earlier version had not finished.
const UNFINISHED: &str = ".new";

/// The hosts on record. Files of the earlier version in `directory` are moved into the journal first.
pub(super) fn known(past: &Past, directory: &Path) -> anyhow::Result<Vec<Zeroizing<Vec<u8>>>> {
    let records = past.recovered.records.iter();
    let hosts = records.filter(|(key, _)| matches!(key, Key::Host(_)));
    let mut known: Vec<_> = hosts.map(|(_, record)| record.clone()).collect();
    let earlier = take_over(&past.journal.writer(), directory);
    known.extend(earlier.with_context(|| format!("names and keys in {}", directory.display()))?);
    Ok(known)
}

fn take_over(writer: &Writer, directory: &Path) -> anyhow::Result<Vec<Zeroizing<Vec<u8>>>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let (mut changes, mut records) = (Vec::new(), Vec::new());
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(UNFINISHED) {
            continue;
        }
        // The name is the SHA-256 of the host's name; a record's key is its first half.
        let key = name.get(..32).context("a name that is no host's");
        let key = key.and_then(|digits| Ok(u128::from_str_radix(digits, 16)?));
        let key = key.with_context(|| format!("{name}: move it away"))?;
        let record = Zeroizing::new(fs::read(entry.path())?);
        check_host_record(&record).with_context(|| {
            format!("{name}: move it away; the leases in it get new names and keys")
        })?;
        changes.push(Change::put(Key::Host(key), record.clone()));
        records.push(record);
    }
    let moved = writer.submit(changes);
    writer.wait(moved)?;
    fs::remove_dir_all(directory)?;
    tracing::info!(hosts = records.len(), directory = %directory.display(), "names and keys are in the journal now");
    Ok(records)
}

impl HostRecords for Writer {
    fn write(&self, host: u128, record: Option<Zeroizing<Vec<u8>>>) {
        let (key, value) = (Key::Host(host), record);
        self.add(vec![Change { key, value }]);
    }

    fn submit(&self) -> u64 {
        Self::submit(self, Vec::new()).0
    }

    fn wait(&self, number: u64) -> Result<(), StepError> {
        Self::wait(self, Seq(number))
            .map_err(|error| StepError::new("credentials", format_args!("journal: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn a_hosts_record_is_in_the_commit_of_its_lease() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("j");
        let (journal, _) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let hosts = journal.writer();
        hosts.write(7, Some(vec![1].into()));
        let lease = Change::put(Key::Lease(fabricbios_wire::LeaseId(1)), vec![2]);
        let submitted = journal.submit(vec![lease]);
        assert_eq!(submitted, Seq(1), "the host was submitted by itself");
        Writer::wait(&hosts, submitted).unwrap();
        // A new key waits for no lease.
        hosts.write(7, Some(vec![3].into()));
        HostRecords::wait(&hosts, HostRecords::submit(&hosts)).unwrap();
        drop(journal);
        let (_journal, recovered) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        assert_eq!(recovered.records[&Key::Host(7)], vec![3].into());
    }

    #[test]
    fn what_an_earlier_version_kept_in_files_is_in_the_journal_afterwards() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join(EARLIER);
        let open =
            || Journal::open_here(&place.path().join("j"), "boot", Box::new(|_| ())).unwrap();
        let (journal, _) = open();
        assert!(take_over(&journal.writer(), &directory).unwrap().is_empty());
        fs::create_dir(&directory).unwrap();
        let name = format!("{:032x}{:032x}", 7, 8);
        let whole = concat!(
            r#"{"host_nqn":"nqn.2020-01.com.example:client","host_id":[7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7],"tenant":"ann","#,
            r#""minted":false,"secret":"DHHC-1:01:w7TPJ0gAHuTQF/BMPkZxW/2AIFJlSeqqF/xjvn2/0KTctnvP:","ctrl_secret":null,"leases":[]}"#
        );
        fs::write(directory.join(&name), whole).unwrap();
        fs::write(directory.join(name + UNFINISHED), "ha").unwrap();
        let taken = take_over(&journal.writer(), &directory).unwrap();
        assert_eq!(taken, [Zeroizing::new(whole.into())]);
        assert!(!directory.exists());
        journal.close().unwrap();
        let (_journal, recovered) = open();
        assert_eq!(
            recovered.records,
            [(Key::Host(7), Vec::from(whole).into())].into()
        );
    }

    #[test]
    fn a_file_that_is_no_hosts_or_damaged_is_named_and_nothing_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let open = Journal::open_here(&place.path().join("j"), "boot", Box::new(|_| ()));
        let (journal, _) = open.unwrap();
        let directory = place.path().join(EARLIER);
        fs::create_dir(&directory).unwrap();
        let damaged = format!("{:064x}", 7);
        for name in [
            "notes",
            "0123456789abcdef-not-a-hash-of-anything-at-all",
            &damaged,
        ] {
            fs::write(directory.join(name), "").unwrap();
            let error = take_over(&journal.writer(), &directory).unwrap_err();
            assert!(
                format!("{error:#}").contains(&format!("{name}: move it away")),
                "{error:#}"
            );
            fs::remove_file(directory.join(name)).unwrap();
        }
    }
}
