//! Records of hosts as bytes, and the interface to their storage. They outlive the process and a reboot.

use std::{
    fmt,
    io::{self, Write},
};

use fabricbios_lease::StepError;
use fabricbios_wire::Nqn;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::credentials::Credential;

/// Longest record: a host with 110,000 leases.
pub const HOST_RECORD_BYTES_MAX: usize = 4_000_000;

/// Stores records of hosts, which contain keys.
pub trait HostRecords: fmt::Debug + Send + Sync {
    /// Stores a record instead of the host's earlier record; `None` removes it. The record is on disk at the latest
    /// when the lease for which it was stored is on disk.
    fn write(&self, host: u128, record: Option<Zeroizing<Vec<u8>>>);
    /// Starts to write all records stored so far, without waiting for the commit of a lease. Returns a number for
    /// [`HostRecords::wait`].
    fn submit(&self) -> u64;
    /// Waits until everything stored before that [`HostRecords::submit`] is on disk.
    ///
    /// # Errors
    /// The records are not on disk; they may get there later.
    fn wait(&self, number: u64) -> Result<(), StepError>;
}

/// The key of a host's record: a hash, since a client's name can have 223 bytes.
pub(super) fn record_key(name: &Nqn) -> u128 {
    let digest: [u8; 32] = Sha256::digest(name.as_str().as_bytes()).into();
    digest
        .first_chunk()
        .map_or(0, |key| u128::from_be_bytes(*key))
}

/// A buffer that grows like a vector, and wipes the old copy when it grows.
#[derive(Default)]
struct Wiped(Zeroizing<Vec<u8>>);

impl Write for Wiped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger =
                Zeroizing::new(Vec::with_capacity(needed.next_power_of_two().max(4096)));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn encode(credential: &Credential) -> Result<Zeroizing<Vec<u8>>, StepError> {
    let failed = |why: String| StepError::new("credentials", why);
    let mut text = Wiped::default();
    serde_json::to_writer(&mut text, credential).map_err(|error| failed(error.to_string()))?;
    if text.0.len() > HOST_RECORD_BYTES_MAX {
        return Err(failed(format!(
            "{} has too many leases",
            credential.host_nqn
        )));
    }
    Ok(text.0)
}

pub(super) fn decode(record: &[u8]) -> Result<Credential, StepError> {
    // The error does not contain the reason, which could quote a key.
    serde_json::from_slice(record).map_err(|_damaged| {
        StepError::new(
            "credentials",
            "the record of a host of block storage is damaged",
        )
    })
}

#[cfg(test)]
pub(super) mod fake {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex, PoisonError},
    };

    use super::*;

    /// A disk that has every write at once.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Disk(Arc<Mutex<BTreeMap<u128, Zeroizing<Vec<u8>>>>>);

    impl Disk {
        pub(crate) fn records(&self) -> Vec<Zeroizing<Vec<u8>>> {
            let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            records.values().cloned().collect()
        }
    }

    impl HostRecords for Disk {
        fn write(&self, host: u128, record: Option<Zeroizing<Vec<u8>>>) {
            let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match record {
                Some(record) => records.insert(host, record),
                None => records.remove(&host),
            };
        }

        fn submit(&self) -> u64 {
            1
        }

        fn wait(&self, _: u64) -> Result<(), StepError> {
            Ok(())
        }
    }
}
