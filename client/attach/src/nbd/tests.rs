//! The server of a device with the path of a node; the tests act as the kernel.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use fabricbios_client::{BlockClient, ClientError};
use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{
    ClientOptions, Coordinates, FbbuConfig, FbbuPath, Refresh, RefreshError,
};
use fabricbios_lease::{BindingId, BootTime, Linger};
use fabricbios_wire::{Generation, LeaseId, ResourceId};
use tempfile::TempDir;

use super::{
    pair,
    server::{End, Server},
};

const TAG: BindingId = BindingId {
    lease_id: LeaseId(7),
    generation: Generation(1),
    resource_id: ResourceId(1),
};
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;

/// The coordinates that a node would return.
#[derive(Clone)]
struct Valid(Arc<Mutex<Coordinates>>);

impl Refresh for Valid {
    fn refresh(&mut self) -> Result<Coordinates, RefreshError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// A node with one lease, in one run of its machine.
fn serving(path: PathBuf, read_only: bool, run: u64) -> (FbbuPath, Coordinates) {
    let config = FbbuConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        workers: Some(1),
        ops_per_second: 1_000_000,
        half_sent_max: FbbuConfig::HALF_SENT_MAX,
        write_verifier: run,
    };
    let backend = FbbuPath::open(&config).unwrap();
    let file = Volume {
        path,
        bytes: (BLOCKS * BLOCK) as u64,
        block_bytes: 4096,
        read_only,
    };
    let binding = backend.serve(TAG, "ann", &file).unwrap();
    backend.extend(TAG, BootTime(u64::MAX)).unwrap();
    let coordinates = Coordinates {
        lease_id: TAG.lease_id,
        dp_key: binding.dp_key.unwrap(),
        endpoint: backend.local_addr(),
    };
    (backend, coordinates)
}

struct Kernel {
    backend: FbbuPath,
    valid: Valid,
    directory: TempDir,
    socket: UnixStream,
    stop: Option<UnixStream>,
    server: JoinHandle<End>,
}

impl Kernel {
    fn start(read_only: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blocks");
        fs::write(&path, vec![0; BLOCKS * BLOCK]).unwrap();
        let (backend, coordinates) = serving(path, read_only, 1);
        let valid = Valid(Arc::new(Mutex::new(coordinates.clone())));
        let asked = Box::new(valid.clone());
        let options = ClientOptions::default();
        let client = BlockClient::connect(coordinates, options, Some(asked)).unwrap();
        let (ours, socket) = pair().unwrap();
        let (stop, stopped) = pair().unwrap();
        // A test whose answer never comes must fail, not hang.
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let server = Server::new(client, ours).unwrap();
        Self {
            backend,
            valid,
            directory,
            socket,
            stop: Some(stop),
            server: thread::spawn(move || server.run(stopped).unwrap()),
        }
    }

    fn ask(&mut self, kind: u16, cookie: u64, offset: usize, length: usize, payload: &[u8]) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((offset as u64).to_be_bytes());
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.extend(payload);
        self.socket.write_all(&bytes).unwrap();
    }

    /// Cookie and errno of the next reply.
    fn reply(&mut self) -> (u64, i32) {
        let mut bytes = [0; 16];
        self.socket.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..4], 0x6744_6698_u32.to_be_bytes());
        let error = i32::from_be_bytes(bytes[4..8].try_into().unwrap());
        (u64::from_be_bytes(bytes[8..].try_into().unwrap()), error)
    }

    fn read(&mut self, block: usize, blocks: usize) -> Vec<u8> {
        self.ask(READ, 5, block * BLOCK, blocks * BLOCK, &[]);
        assert_eq!(self.reply(), (5, 0));
        let mut bytes = vec![0; blocks * BLOCK];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Restarts the node as after a power cut; no write is lost, but the client cannot know this.
    fn reboot_node(&mut self) {
        let path = self.directory.path().join("blocks");
        let (backend, coordinates) = serving(path, false, 2);
        *self.valid.0.lock().unwrap() = coordinates;
        self.backend = backend;
    }

    fn disk(&self) -> Vec<u8> {
        fs::read(self.directory.path().join("blocks")).unwrap()
    }

    fn end(self) -> End {
        self.server.join().unwrap()
    }
}

#[test]
fn what_the_kernel_writes_it_reads_and_a_stop_answers_all_of_it() {
    let mut kernel = Kernel::start(false);
    for block in 0..BLOCKS {
        let bytes = vec![u8::try_from(block).unwrap(); BLOCK];
        kernel.ask(WRITE, block as u64, block * BLOCK, BLOCK, &bytes);
    }
    let mut answered: Vec<_> = (0..BLOCKS).map(|_| kernel.reply()).collect();
    answered.sort_unstable();
    let all: Vec<_> = (0..BLOCKS as u64).map(|cookie| (cookie, 0)).collect();
    assert_eq!(answered, all);
    kernel.ask(FLUSH, 9, 0, 0, &[]);
    assert_eq!(kernel.reply(), (9, 0));
    let disk = kernel.disk();
    assert!(kernel.read(3, 20) == disk[3 * BLOCK..23 * BLOCK]);
    drop(kernel.stop.take());
    assert!(matches!(kernel.end(), End::Stopped(Ok(()))));
}

#[test]
fn what_the_device_cannot_do_is_answered_with_an_error_and_it_goes_on() {
    let mut kernel = Kernel::start(true);
    kernel.ask(WRITE, 1, 0, BLOCK, &[1; BLOCK]);
    assert_eq!(kernel.reply(), (1, libc::EPERM));
    for (kind, offset, length) in [
        (READ, 100, BLOCK),
        (READ, 0, 100),
        (READ, BLOCKS * BLOCK, BLOCK),
        (TRIM, 0, BLOCK),
    ] {
        kernel.ask(kind, 2, offset, length, &[]);
        let (cookie, error) = kernel.reply();
        assert_eq!(cookie, 2);
        assert!(error != 0, "{kind} at {offset}");
    }
    assert_eq!(kernel.read(0, 1), [0; BLOCK]);
    kernel.ask(DISCONNECT, 3, 0, 0, &[]);
    assert!(matches!(kernel.end(), End::Disconnected));
}

#[test]
fn a_power_cut_of_the_node_fails_one_flush_and_the_device_goes_on() {
    let mut kernel = Kernel::start(false);
    kernel.ask(WRITE, 1, 0, BLOCK, &[1; BLOCK]);
    assert_eq!(kernel.reply(), (1, 0));
    kernel.reboot_node();
    for (cookie, error) in [(2, libc::EIO), (3, 0)] {
        kernel.ask(FLUSH, cookie, 0, 0, &[]);
        assert_eq!(kernel.reply(), (cookie, error));
    }
    assert_eq!(kernel.read(0, 1), [1; BLOCK]);
}

#[test]
fn everything_is_answered_when_the_lease_ends() {
    let mut kernel = Kernel::start(false);
    kernel.backend.revoke(TAG, Linger::None).unwrap();
    for cookie in 0..20 {
        kernel.ask(WRITE, cookie, 0, BLOCK, &[1; BLOCK]);
    }
    assert_eq!(kernel.reply().1, libc::EIO);
    let socket = kernel.socket.try_clone().unwrap();
    let end = kernel.end();
    assert!(
        matches!(end, End::Lost(ClientError::NoLease { .. })),
        "{end:?}"
    );
    // A later request does not wait either: the socket is closed.
    let mut rest = Vec::new();
    (&socket).read_to_end(&mut rest).ok();
    assert!(rest.len() < 20 * 16);
}

#[test]
fn who_does_not_speak_nbd_is_not_listened_to() {
    let mut kernel = Kernel::start(false);
    kernel.socket.write_all(&[0; 28]).unwrap();
    assert!(kernel.server.join().is_err());
}
