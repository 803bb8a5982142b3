//! A worker of GPU sessions; memory of this process stands for the device's memory. The worker speaks the whole
//! protocol and knows three kernels.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, IoSliceMut, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, mpsc},
    thread,
};

use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_control::{SessionConnector, SessionOpen};
use fabricbios_fabric::Principal;
use fabricbios_wire::{
    GpuLaunch, GpuOpened, GpuReply, GpuRequest, GpuSharedCopy, HEADER_LEN, Header, LeaseError,
    LeaseId, Refusal, RefusalClass, decode_gpu_request, encode_gpu_answer,
};
use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};

use super::LEASE;

/// UUID of the GPU in the binding of an active lease.
pub(crate) const UUID: &str = "GPU-00000000-0000-0000-0000-00000000feed";
pub(crate) const VRAM: u64 = 1 << 30;
/// A text that this worker accepts as PTX.
pub(crate) const PTX: &[u8] = b"//\n.version 7.0\n";

const ADDRESS: u64 = 0x7f00_0000_0000;

/// How the worker handles a request.
pub(crate) enum Act {
    /// Does it.
    Do,
    /// Refuses it.
    Refuse(Refusal),
    /// Closes this stream without an answer; the session goes on.
    Hang,
    /// Ends with the session.
    Die,
    /// Does it when this sender is used or dropped.
    After(mpsc::Receiver<()>),
}

type Script = Box<dyn FnMut(&GpuRequest) -> Act + Send>;

/// The workers of a lease, one after the other. Clones share them.
#[derive(Clone)]
pub(crate) struct FakeGpu(Arc<Mutex<State>>);

struct State {
    /// The number of the session, if there is one.
    session: Option<u64>,
    sessions: u64,
    memories: BTreeMap<u64, Vec<u8>>,
    modules: BTreeMap<u64, Vec<u8>>,
    handles: u64,
    wiped: u64,
    streams: usize,
    log: Vec<GpuRequest>,
    script: Script,
    /// Refusals of further streams, sent before any worker exists.
    refusals: VecDeque<Refusal>,
}

impl Default for FakeGpu {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            session: None,
            sessions: 6,
            memories: BTreeMap::new(),
            modules: BTreeMap::new(),
            handles: 0,
            wiped: 0,
            streams: 0,
            log: Vec::new(),
            script: Box::new(|_| Act::Do),
            refusals: VecDeque::new(),
        })))
    }
}

impl FakeGpu {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Requests so far, without the first request of each stream.
    pub(crate) fn log(&self) -> Vec<GpuRequest> {
        let log = self.state().log.clone();
        let is_open = |it: &GpuRequest| matches!(it, GpuRequest::Open { .. });
        log.into_iter().filter(|it| !is_open(it)).collect()
    }

    /// The session numbers that streams asked for.
    pub(crate) fn opened(&self) -> Vec<u64> {
        let log = self.state().log.clone();
        let session = |it| match it {
            GpuRequest::Open { session, .. } => Some(session),
            _ => None,
        };
        log.into_iter().filter_map(session).collect()
    }

    pub(crate) fn streams(&self) -> usize {
        self.state().streams
    }

    pub(crate) fn memories(&self) -> usize {
        self.state().memories.len()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().session.is_some()
    }

    pub(crate) fn script(&self, script: impl FnMut(&GpuRequest) -> Act + Send + 'static) {
        self.state().script = Box::new(script);
    }

    /// Refuses the next stream.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.state().refusals.push_back(refusal);
    }

    /// Kills the worker.
    pub(crate) fn kill(&self) {
        self.state().end();
    }

    fn connect_to(&self, lease_id: LeaseId, session: u64) -> Result<UnixStream, Refusal> {
        let mut state = self.state();
        if let Some(refusal) = state.refusals.pop_front() {
            return Err(refusal);
        }
        if lease_id != LEASE {
            return Err(not_found("no such lease"));
        }
        if session == 0 && state.session.is_none() {
            state.sessions += 1;
            state.session = Some(state.sessions);
        }
        if session != 0 && state.session != Some(session) {
            return Err(not_found(&format!("session {session} is over")));
        }
        state.streams += 1;
        let session = state.session.unwrap();
        drop(state);
        let (ours, its) = UnixStream::pair().unwrap();
        let gpu = self.clone();
        thread::spawn(move || Worker::new(gpu, its, session).serve());
        Ok(ours)
    }
}

impl SessionConnector for FakeGpu {
    fn connect(&self, _: &Principal, open: SessionOpen) -> Result<UnixStream, Refusal> {
        self.connect_to(open.lease_id, open.session)
    }
}

impl LocalAccess for FakeGpu {
    fn enter(&self, _: LeaseId, _: &Caller, _: Given) -> Result<Entered, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    fn session(&self, lease: LeaseId, _: &Caller, session: u64) -> Result<OwnedFd, LocalRefusal> {
        let connected = self.connect_to(lease, session);
        connected.map(OwnedFd::from).map_err(LocalRefusal::from)
    }
}

impl State {
    fn end(&mut self) -> u64 {
        self.session = None;
        self.modules.clear();
        let memories = std::mem::take(&mut self.memories);
        memories.values().map(|it| it.len() as u64).sum()
    }

    fn used(&self) -> u64 {
        self.memories.values().map(|it| it.len() as u64).sum()
    }

    fn handle(&mut self) -> u64 {
        self.handles += 1;
        self.session.unwrap() << 32 | self.handles
    }

    fn range(&mut self, memory: u64, offset: u64, length: u64) -> Result<&mut [u8], Refusal> {
        let bytes = self.memories.get_mut(&memory);
        let bytes = bytes.ok_or_else(|| not_found(&format!("no memory {memory:#x}")))?;
        let (start, length) = (host(offset), host(length));
        let range = bytes.get_mut(start..).and_then(|it| it.get_mut(..length));
        range.ok_or_else(|| invalid("past the end of the memory"))
    }

    /// The memory at this address of the device.
    fn at(&mut self, argument: &[u8]) -> Result<&mut Vec<u8>, Refusal> {
        let address = u64::from_le_bytes(argument.try_into().unwrap());
        let memory = self.memories.get_mut(&(address - ADDRESS));
        memory.ok_or_else(|| invalid("an illegal address"))
    }

    fn launch(&mut self, launch: &GpuLaunch) -> Result<GpuReply, Refusal> {
        if !self.modules.contains_key(&launch.module) {
            return Err(not_found("no such module"));
        }
        if launch.grid.contains(&0) || launch.block.contains(&0) {
            return Err(invalid("a grid of nothing"));
        }
        let arguments: Vec<&[u8]> = launch.arguments.iter().map(Vec::as_slice).collect();
        match (launch.kernel.as_str(), &arguments[..]) {
            ("add", [a, b, sum, _count]) => {
                let numbers = |bytes: &[u8]| -> Vec<f32> {
                    let chunks = bytes.chunks_exact(4);
                    chunks
                        .map(|it| f32::from_le_bytes(it.try_into().unwrap()))
                        .collect()
                };
                let (a, b) = (numbers(self.at(a)?), numbers(self.at(b)?));
                let added = a.iter().zip(&b).flat_map(|(a, b)| (a + b).to_le_bytes());
                let added: Vec<u8> = added.collect();
                self.at(sum)?[..added.len()].copy_from_slice(&added);
                Ok(GpuReply::Done)
            }
            // Copies all arguments but the first, one after the other, into the memory of the first.
            ("pack", [into, rest @ ..]) => {
                let packed = rest.concat();
                self.at(into)?[..packed.len()].copy_from_slice(&packed);
                Ok(GpuReply::Done)
            }
            ("add" | "pack", _) => Err(invalid("wrong number of arguments")),
            ("nothing", _) => Ok(GpuReply::Done),
            (other, _) => Err(invalid(&format!("no kernel {other:?} in this module"))),
        }
    }
}

fn host(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

fn not_found(message: &str) -> Refusal {
    Refusal::new(LeaseError::NotFound, RefusalClass::Permanent, message)
}

pub(crate) fn invalid(message: &str) -> Refusal {
    Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, message)
}

/// One stream of a session.
struct Worker {
    gpu: FakeGpu,
    stream: UnixStream,
    session: u64,
    shared: Option<File>,
    /// The descriptor that came with the last frame.
    beside: Option<OwnedFd>,
}

impl Worker {
    fn new(gpu: FakeGpu, stream: UnixStream, session: u64) -> Self {
        Self {
            gpu,
            stream,
            session,
            shared: None,
            beside: None,
        }
    }

    /// Serves until the client or the worker closes its end.
    fn serve(mut self) {
        while let Ok(Some(())) = self.step() {}
        self.gpu.state().streams -= 1;
    }

    fn step(&mut self) -> io::Result<Option<()>> {
        let mut frame = vec![0; HEADER_LEN];
        self.fill(&mut frame)?;
        let header = Header::parse(frame.first_chunk().unwrap()).unwrap();
        frame.resize(HEADER_LEN + host(header.payload_len.into()), 0);
        self.fill(&mut frame[HEADER_LEN..])?;
        let request = match decode_gpu_request(&frame) {
            Ok((_, request)) => request,
            Err(rejected) => {
                let answer = Err(rejected.refusal());
                self.stream
                    .write_all(&encode_gpu_answer(&header, &answer))?;
                return Ok(None);
            }
        };
        let mut data = vec![0; request.data_bytes()];
        self.fill(&mut data)?;
        let act = {
            let mut state = self.gpu.state();
            // Another session has begun, or there is none.
            if state.session != Some(self.session) {
                return Ok(None);
            }
            state.log.push(request.clone());
            (state.script)(&request)
        };
        let answer = match act {
            Act::Do => self.carry_out(&request, &data),
            Act::Refuse(refusal) => Err(refusal),
            Act::Hang => return Ok(None),
            Act::Die => {
                self.gpu.kill();
                return Ok(None);
            }
            Act::After(go) => {
                go.recv().ok();
                self.carry_out(&request, &data)
            }
        };
        let (answer, data) = match answer {
            Ok((reply, data)) => (Ok(reply), data),
            Err(refusal) => (Err(refusal), Vec::new()),
        };
        self.stream
            .write_all(&encode_gpu_answer(&header, &answer))?;
        self.stream.write_all(&data)?;
        let is_closed = matches!(answer, Ok(GpuReply::Closed { .. }));
        Ok((!is_closed).then_some(()))
    }

    fn carry_out(
        &mut self,
        request: &GpuRequest,
        data: &[u8],
    ) -> Result<(GpuReply, Vec<u8>), Refusal> {
        let gpu = self.gpu.clone();
        let mut state = gpu.state();
        let reply = match request {
            GpuRequest::Open { .. } => GpuReply::Opened(GpuOpened {
                session: self.session,
                vram_bytes: VRAM,
                vram_used: state.used(),
                queue_slots: 4,
                device: "a GPU of memory".into(),
                uuid: UUID.into(),
            }),
            GpuRequest::MemAlloc { bytes } => {
                if state.used() + bytes > VRAM {
                    let message = format!("{bytes} bytes are more than the lease has left");
                    let (error, class) = (LeaseError::CapacityExceeded, RefusalClass::Permanent);
                    return Err(Refusal::new(error, class, message));
                }
                let memory = state.handle();
                state.memories.insert(memory, vec![0; host(*bytes)]);
                let address = ADDRESS + memory;
                GpuReply::Memory { memory, address }
            }
            GpuRequest::MemWrite {
                memory,
                offset,
                length,
            } => {
                let range = state.range(*memory, *offset, (*length).into())?;
                range.copy_from_slice(data);
                GpuReply::Done
            }
            GpuRequest::MemRead {
                memory,
                offset,
                length,
            } => {
                let length = *length;
                let data = state.range(*memory, *offset, length.into())?.to_vec();
                return Ok((GpuReply::Data { length }, data));
            }
            GpuRequest::ModuleLoad { .. } => {
                if !data.starts_with(b"//") {
                    return Err(invalid("neither PTX nor a binary for this device"));
                }
                let module = state.handle();
                state.modules.insert(module, data.to_vec());
                GpuReply::Module { module }
            }
            GpuRequest::Launch(launch) => state.launch(launch)?,
            GpuRequest::Sync { .. } => GpuReply::Done,
            GpuRequest::MemFree { memory } => match state.memories.remove(memory) {
                Some(bytes) => {
                    state.wiped += bytes.len() as u64;
                    GpuReply::Done
                }
                None => return Err(not_found("no such memory")),
            },
            GpuRequest::ModuleUnload { module } => match state.modules.remove(module) {
                Some(_) => GpuReply::Done,
                None => return Err(not_found("no such module")),
            },
            GpuRequest::Close => {
                let wiped_bytes = state.end() + std::mem::take(&mut state.wiped);
                let free_bytes = VRAM;
                GpuReply::Closed {
                    wiped_bytes,
                    free_bytes,
                }
            }
            GpuRequest::MemShare { length } => {
                let file = File::from(self.beside.take().unwrap());
                assert_eq!(file.metadata().unwrap().len(), *length);
                self.shared = Some(file);
                GpuReply::Done
            }
            GpuRequest::MemWriteShared(copy) => {
                let (file, range) = self.shared_range(&mut state, copy)?;
                file.read_exact_at(range, copy.shared_offset).unwrap();
                GpuReply::Done
            }
            GpuRequest::MemReadShared(copy) => {
                let (file, range) = self.shared_range(&mut state, copy)?;
                file.write_all_at(range, copy.shared_offset).unwrap();
                GpuReply::Done
            }
        };
        Ok((reply, Vec::new()))
    }

    fn shared_range<'a>(
        &self,
        state: &'a mut State,
        copy: &GpuSharedCopy,
    ) -> Result<(&File, &'a mut [u8]), Refusal> {
        let shared = self.shared.as_ref();
        let shared = shared.ok_or_else(|| invalid("nothing is shared"))?;
        let range = state.range(copy.memory, copy.offset, copy.length)?;
        Ok((shared, range))
    }

    /// Reads with recvmsg(2), which gives descriptors too.
    fn fill(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let mut space = cmsg_space!([i32; 1]);
            let end = self.stream.as_raw_fd();
            let mut parts = [IoSliceMut::new(into)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let got = recvmsg::<()>(end, &mut parts, Some(&mut space), flags)?;
            for message in got.cmsgs()? {
                if let ControlMessageOwned::ScmRights(raw) = message {
                    // SAFETY: the kernel has just made the descriptor for this process.
                    self.beside = Some(unsafe { OwnedFd::from_raw_fd(raw[0]) });
                }
            }
            let bytes = got.bytes;
            if bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into = &mut into[bytes..];
        }
        Ok(())
    }
}
