//! A server of blocks with a file for each lease, whose storage can be held back.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    thread,
};

use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath};
use fabricbios_lease::Linger;
use fabricbios_wire::{Binding, LeaseId};
use nix::{
    sys::eventfd::{EfdFlags, EventFd},
    unistd,
};
use tempfile::TempDir;

use crate::{
    client::Client,
    fixture::{binding_id, in_a_minute},
};

pub(crate) const UNIT: u32 = 4096;
pub(crate) const BLOCKS: u64 = 300;

pub(crate) struct Disks {
    pub(crate) backend: FbbuPath,
    directory: TempDir,
    hold: Option<Arc<OwnedFd>>,
}

impl Disks {
    pub(crate) fn new() -> Self {
        Self::with(config(), None)
    }

    pub(crate) fn of_two_threads() -> Self {
        let workers = Some(2);
        let config = FbbuConfig {
            workers,
            ..config()
        };
        Self::with(config, None)
    }

    /// A server whose storage begins no I/O before [`Self::let_go`].
    pub(crate) fn held() -> Self {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        Self::with(config(), Some(Arc::new(event.into())))
    }

    pub(crate) fn with(config: FbbuConfig, hold: Option<Arc<OwnedFd>>) -> Self {
        Self {
            backend: FbbuPath::open_held(&config, hold.clone()).unwrap(),
            directory: tempfile::tempdir().unwrap(),
            hold,
        }
    }

    pub(crate) fn let_go(&self) {
        unistd::write(self.hold.as_ref().unwrap(), &1u64.to_ne_bytes()).unwrap();
    }

    pub(crate) fn path(&self, number: u128) -> PathBuf {
        self.directory.path().join(number.to_string())
    }

    /// A new file of zeros.
    pub(crate) fn file(&self, number: u128) -> Volume {
        let bytes = BLOCKS * u64::from(UNIT);
        let path = self.path(number);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        Volume {
            path,
            bytes,
            block_bytes: UNIT,
            read_only: false,
        }
    }

    /// A lease of the tenant `ann` with a term of a minute.
    pub(crate) fn lease(&self, number: u128, file: &Volume) -> Binding {
        self.lease_of("ann", number, file)
    }

    fn lease_of(&self, tenant: &str, number: u128, file: &Volume) -> Binding {
        let bound = self.backend.serve(binding_id(number, 1), tenant, file);
        self.backend
            .extend(binding_id(number, 1), in_a_minute())
            .unwrap();
        bound.unwrap()
    }

    pub(crate) fn client(&self, number: u128, binding: &Binding) -> Client {
        Client::new(self.backend.local_addr(), LeaseId(number), binding).of_blocks(UNIT)
    }

    /// A client of a new lease, with a session.
    pub(crate) fn leased(&self, number: u128) -> Client {
        self.leased_to("ann", number)
    }

    /// The same for another tenant.
    pub(crate) fn leased_to(&self, tenant: &str, number: u128) -> Client {
        let binding = self.lease_of(tenant, number, &self.file(number));
        let mut client = self.client(number, &binding);
        client.hello();
        client
    }

    pub(crate) fn cut(&self, number: u128) -> String {
        self.backend
            .revoke(binding_id(number, 1), Linger::None)
            .unwrap()
            .steps
            .to_string()
    }

    pub(crate) fn retire(&self, number: u128) {
        self.backend.remove(binding_id(number, 1), &|| ()).unwrap();
    }

    /// Reads one block of the file directly, not over FBBU.
    pub(crate) fn block(&self, number: u128, at: u64) -> Vec<u8> {
        let bytes = fs::read(self.path(number)).unwrap();
        bytes[at as usize * UNIT as usize..][..UNIT as usize].to_vec()
    }

    /// Waits until this many datagrams have been received, and begun or answered.
    pub(crate) fn await_received(&self, count: u64) {
        while self.backend.counters().tally().received < count {
            thread::yield_now();
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.backend.counters().tally().received
    }
}

/// One thread, so that replies leave in the order in which they are ready.
pub(crate) fn config() -> FbbuConfig {
    FbbuConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        workers: Some(1),
        ops_per_second: 1_000_000,
        half_sent_max: FbbuConfig::HALF_SENT_MAX,
        write_verifier: 1,
    }
}

pub(crate) fn block(value: u8) -> Vec<u8> {
    vec![value; UNIT as usize]
}
