//! Names and keys of NVMe hosts, as records of the journal.

use fabricbios_lease::StepError;
use fabricbios_nvmet::{HOST_RECORD_BYTES_MAX, HostRecords};
use zeroize::Zeroizing;

use crate::journal::{CHANNEL, Change, Key, Seq, Writer, past::Past};

// A record that is too long for the journal would block all other records.
const _: () = assert!(HOST_RECORD_BYTES_MAX + 64 < CHANNEL.frame_bytes_max);

/// The hosts on record.
pub(super) fn known(past: &Past) -> Vec<Zeroizing<Vec<u8>>> {
    let records = past.recovered.records.iter();
    let hosts = records.filter(|(key, _)| matches!(key, Key::Host(_)));
    hosts.map(|(_, record)| record.clone()).collect()
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
        // A new key is durable without a commit of a lease.
        hosts.write(7, Some(vec![3].into()));
        HostRecords::wait(&hosts, HostRecords::submit(&hosts)).unwrap();
        drop(journal);
        let (_journal, recovered) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        assert_eq!(recovered.records[&Key::Host(7)], vec![3].into());
    }
}
