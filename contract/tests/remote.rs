//! The provider with its store and each of its paths behind a socket, as they would be in processes of their own: the
//! same cases, and what a socket adds to them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "provider/cases.rs"]
mod cases;
#[path = "provider/world.rs"]
mod world;

use std::{
    ffi::OsStr,
    fs::File,
    io::{IoSlice, Read, Seek, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    sync::{Arc, mpsc::channel},
    thread,
};

use fabricbios_contract::{
    DataPath, Part, Revoked, Store, TellCondition, Volume,
    remote::{
        Call, FRAME_BYTES_MAX, RemotePath, RemoteStore, VERSION, decode, encode, read_frame,
        serve_path, serve_store,
    },
};
use fabricbios_lease::*;
use fabricbios_wire::*;
use nix::{
    fcntl::OFlag,
    sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg},
};
use world::{EXTENT, binding_id, order};

fn path(path: Arc<dyn DataPath>) -> Arc<dyn DataPath> {
    let (here, there) = UnixStream::pair().unwrap();
    thread::spawn(move || serve_path(there, &path));
    Arc::new(RemotePath::new(here).unwrap())
}

fn store(store: Arc<dyn Store>) -> Arc<dyn Store> {
    let (here, there) = UnixStream::pair().unwrap();
    thread::spawn(move || serve_store(there, &store));
    Arc::new(RemoteStore::new(here).unwrap())
}

/// The release of this lease panics.
const PANICS: u32 = 13;
/// The path of this lease's volume is no text.
const NOT_UTF8: u32 = 14;

/// A store whose parts are files without a name.
struct Files;

impl Store for Files {
    fn prepare(&self, _: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        (0..3).for_each(|_| progress());
        Ok(())
    }
    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        if order.binding_id == binding_id(NOT_UTF8) {
            let path = OsStr::from_bytes(b"/pool/\xff").into();
            let volume = Volume {
                path,
                bytes: 4096,
                block_bytes: 512,
                read_only: true,
            };
            return Ok(Part {
                volume: Some(volume),
                ..Part::at(order.placement.clone())
            });
        }
        let mut file = tempfile();
        write!(file, "{}", order.binding_id).unwrap();
        Ok(Part {
            volume: Some(Volume {
                path: "/pool/1".into(),
                bytes: 4096,
                block_bytes: 512,
                read_only: true,
            }),
            descriptor: Some(Arc::new(file.into())),
            ..Part::at(order.placement.clone())
        })
    }
    fn confirm(&self, _: BindingId) -> Result<(), StepError> {
        Err(StepError::new("confirm", "no"))
    }
    fn forget(&self, _: BindingId, _: &Placement) -> Result<(), StepError> {
        Err(StepError::new("forget", "never"))
    }
    fn release(
        &self,
        id: BindingId,
        _: Option<&Placement>,
        _: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        assert!(id != binding_id(PANICS), "on purpose");
        Ok(Proof::nothing_to_clean("made up"))
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok((0..300_000).map(LeaseId).collect())
    }
    fn tell_condition(&self, tell: TellCondition) {
        tell(Condition::Degraded("one of two disks".into()));
    }
}

fn tempfile() -> File {
    let name = c"part";
    nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
        .map(File::from)
        .unwrap()
}

#[test]
fn a_descriptor_comes_with_its_part() {
    let files = store(Arc::new(Files));
    let part = files.open(&order(3, Transport::Udp)).unwrap();
    assert_eq!(part.volume.unwrap().block_bytes, 512);
    let descriptor = Arc::into_inner(part.descriptor.unwrap()).unwrap();
    let mut file = File::from(descriptor);
    file.rewind().unwrap();
    let mut told = String::new();
    file.read_to_string(&mut told).unwrap();
    assert_eq!(told, binding_id(3).to_string());
}

#[test]
fn progress_long_lists_and_errors_come_through() {
    let files = store(Arc::new(Files));
    let calls = std::cell::Cell::new(0);
    let progress = || calls.set(calls.get() + 1);
    files.prepare(&order(1, Transport::Udp), &progress).unwrap();
    assert_eq!(calls.get(), 3);
    assert_eq!(files.leases().unwrap().len(), 300_000);
    let error = files.confirm(binding_id(1)).unwrap_err();
    assert_eq!(error, StepError::new("confirm", "no"));
    let error = files.forget(binding_id(1), &EXTENT.into()).unwrap_err();
    assert_eq!(error, StepError::new("forget", "never"));
    let (tell, told) = channel();
    files.tell_condition(Box::new(move |condition| tell.send(condition).unwrap()));
    let expected = Condition::Degraded("one of two disks".into());
    assert_eq!(told.recv().unwrap(), expected);
}

#[test]
fn a_call_without_an_outcome_is_an_error_and_the_next_one_is_served() {
    let files = store(Arc::new(Files));
    let error = files.release(binding_id(PANICS), None, &|| ()).unwrap_err();
    assert!(error.detail.contains("panicked"), "{error}");
    let opened = files.open(&order(NOT_UTF8, Transport::Udp)).unwrap_err();
    assert!(matches!(opened, BindError::Stranded(_)), "{opened:?}");
    files.release(binding_id(1), None, &|| ()).unwrap();
}

#[test]
fn several_descriptors_are_refused_and_closed() {
    for count in [2, 3, 200] {
        let (end, descriptor) = nix::unistd::pipe2(OFlag::O_NONBLOCK).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let mut bytes = 10_u32.to_le_bytes().to_vec();
        bytes.extend([VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let rights = vec![descriptor.as_raw_fd(); count];
        let sent = sendmsg::<UnixAddr>(
            here.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[ControlMessage::ScmRights(&rights)],
            MsgFlags::empty(),
            None,
        );
        assert_eq!(sent.unwrap(), bytes.len());
        drop(descriptor);
        assert!(read_frame(&there).is_err(), "{count} descriptors");
        // At the end only if nobody has the other end any more.
        assert_eq!(File::from(end).read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_store_is_no_path() {
    let (here, there) = UnixStream::pair().unwrap();
    thread::spawn(move || serve_store(there, &(Arc::new(Files) as Arc<dyn Store>)));
    let path = RemotePath::new(here).unwrap();
    let error = path.revoke(binding_id(1), Linger::None).unwrap_err();
    assert!(error.detail.contains("not for a store"), "{error}");
}

#[test]
fn who_waits_for_a_process_that_is_gone_learns_it() {
    let (here, there) = UnixStream::pair().unwrap();
    let path = RemotePath::new(here).unwrap();
    let gone = thread::spawn(move || {
        // It has heard the call, and dies with it.
        let heard = read_frame(&there).unwrap().unwrap();
        let call: Call = decode(&heard.body).unwrap();
        there.shutdown(Shutdown::Both).unwrap();
        call
    });
    // What it made before is somebody's to look for.
    let part = Part::at(EXTENT);
    let stranded = path.bind(&order(1, Transport::Udp), &part);
    assert!(
        matches!(stranded, Err(BindError::Stranded(_))),
        "{stranded:?}"
    );
    assert!(matches!(gone.join().unwrap(), Call::Bind(..)));
    let error = path.revoke(binding_id(1), Linger::None).unwrap_err();
    assert!(error.detail.contains("gone"), "{error}");
}

#[test]
fn nonsense_is_no_call_and_takes_no_memory() {
    let long = (FRAME_BYTES_MAX + 1).to_le_bytes();
    let whole = |version: u8, kind: u8, body: &[u8]| {
        let mut bytes = u32::try_from(10 + body.len())
            .unwrap()
            .to_le_bytes()
            .to_vec();
        bytes.extend([version, kind, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(body);
        bytes
    };
    let revoke = encode(&Call::Revoke(binding_id(1), Linger::None)).unwrap();
    let mut behind = revoke.to_vec();
    behind.push(0);
    for bytes in [
        [&long[..], &[0; 10]].concat(),
        [
            &FRAME_BYTES_MAX.to_le_bytes()[..],
            &[VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[7; 99],
        ]
        .concat(),
        whole(VERSION + 1, 0, &revoke),
        whole(VERSION, 9, &revoke),
        whole(VERSION, 2, &revoke),
        whole(VERSION, 0, &[0xFF; 40]),
        whole(VERSION, 0, &behind),
        vec![3, 0, 0, 0],
    ] {
        let (mut here, there) = UnixStream::pair().unwrap();
        let files: Arc<dyn Store> = Arc::new(Files);
        let serving = thread::spawn(move || serve_store(there, &files));
        here.write_all(&bytes).unwrap();
        here.shutdown(Shutdown::Write).unwrap();
        assert!(serving.join().unwrap().is_err(), "{bytes:?}");
    }
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let revoked = Revoked {
        steps: Proof::nothing_to_cut("no reason"),
        is_proved: false,
        found: vec![1, 2, 3],
    };
    let mut order = order(7, Transport::Both);
    order.tenant = "ann".into();
    order.terms = BlockTerms::default().into();
    order.grace = std::time::Duration::from_secs(3);
    for call in [
        Call::Prepare(order.clone()),
        Call::Open(order.clone()),
        Call::Forget(binding_id(1), EXTENT.into()),
        Call::Release(binding_id(1), Some(EXTENT.into())),
        Call::Release(binding_id(1), None),
        Call::TellCondition,
        Call::Extend(binding_id(1), BootTime(u64::MAX)),
        Call::Fenced(binding_id(1)),
        Call::Rotate(binding_id(1)),
        Call::RetireKey(binding_id(1)),
        Call::Revoke(binding_id(1), Linger::Brief),
        Call::Verify(binding_id(1), Some(revoked)),
        Call::Verify(binding_id(1), None),
        Call::Remove(binding_id(1)),
        Call::Leases,
        Call::Confirm(binding_id(1)),
    ] {
        let bytes = encode(&call).unwrap();
        assert_eq!(decode::<Call>(&bytes).unwrap(), call);
        for cut in 0..bytes.len() {
            assert!(decode::<Call>(&bytes[..cut]).is_err(), "{call:?} to {cut}");
        }
    }
}

#[test]
fn a_second_descriptor_than_the_one_that_is_asked_for_does_not_stay_open() {
    let part = Part {
        descriptor: Some(Arc::new(OwnedFd::from(tempfile()))),
        ..Part::at(EXTENT)
    };
    let before = open_descriptors();
    let world = world::World::new();
    for lease in 0..50 {
        let mut order = order(1, Transport::Udp);
        order.binding_id.lease_id = LeaseId(lease);
        world.rdma.bind(&order, &part).unwrap();
    }
    drop(world);
    // The threads at the other ends close theirs a moment later.
    while open_descriptors() > before + 8 {
        thread::yield_now();
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
