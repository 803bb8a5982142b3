//! One stream: a queue of the session. Its operations are carried out and answered in order.

mod answers;
mod data;

use std::{
    io,
    os::unix::net::UnixStream,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fabricbios_wire::{
    GPU_COPY_BYTES_MAX, GpuLaunch, GpuReply, GpuRequest, HEADER_LEN, LeaseError, Refusal, Rejected,
};

use self::answers::Answers;
use super::{
    connection::{Connection, Operation, Start},
    launch::{check_arguments, check_shape},
    refusal::{internal, invalid, not_found},
    server::{Running, Server},
};
use crate::driver::{Arguments, DriverError, Shape, Stream};

/// How long a client may take to open the session on a new stream.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// Staging memory of the stream that wipes a session, bytes.
const CLOSING_BYTES: usize = 4 << 10;
/// How long kernels may still run when the session is closed.
const KERNELS_END_WITHIN: Duration = Duration::from_secs(5);

/// An answer, unless the stream is broken.
type Answered = io::Result<Result<GpuReply, Refusal>>;

struct Queue<'a> {
    server: &'a Arc<Server>,
    connection: &'a mut Connection,
    stream: &'a mut Stream,
    arguments: Arguments,
    answers: Answers,
    /// While operations are not answered.
    running: Option<Running<'a>>,
}

/// Serves a stream until the client ends it.
pub(super) fn serve(server: &Arc<Server>, socket: UnixStream) -> io::Result<()> {
    let mut connection = Connection::new(socket);
    connection.set_patience(Some(OPENS_WITHIN))?;
    let Some(start) = connection.next()? else {
        return Ok(());
    };
    let running = server.running();
    let Operation {
        header, request, ..
    } = match connection.operation(start)? {
        Ok(operation) => operation,
        Err(rejected) => return connection.reject(&rejected),
    };
    let slot = match server.admit(&request) {
        Ok(slot) => slot,
        Err(refusal) => {
            let is_full = refusal.error == LeaseError::ResourceBusy;
            connection.answer(&header, &Err(refusal))?;
            drop(running);
            return if is_full {
                serve_close(server, &mut connection)
            } else {
                Ok(())
            };
        }
    };
    let staging = usize::try_from(GPU_COPY_BYTES_MAX).unwrap_or(usize::MAX);
    let mut stream = match Stream::new(&server.engine.context, staging) {
        Ok(stream) => stream,
        Err(error) => {
            let refusal = server.engine.failed(&error, internal);
            connection.answer(&header, &Err(refusal))?;
            return Ok(());
        }
    };
    connection.answer(&header, &Ok(server.opened()))?;
    connection.set_patience(None)?;
    drop(running);
    let mut queue = Queue {
        server,
        connection: &mut connection,
        stream: &mut stream,
        arguments: Arguments::default(),
        answers: Answers::default(),
        running: None,
    };
    let served = queue.serve();
    drop(queue);
    if server.engine.order.one_shot {
        let _running = server.running();
        // The close is refused if the node has closed the session already.
        close(server).ok();
    }
    drop(stream);
    drop(slot);
    served
}

/// Serves a stream that got no queue: the stream can still close the session.
fn serve_close(server: &Arc<Server>, connection: &mut Connection) -> io::Result<()> {
    let Some(start) = connection.next()? else {
        return Ok(());
    };
    let _running = server.running();
    let Operation {
        header, request, ..
    } = match connection.operation(start)? {
        Ok(operation) => operation,
        Err(rejected) => return connection.reject(&rejected),
    };
    if request != GpuRequest::Close {
        let why = "this stream was refused: it can only close the session";
        return connection.answer(&header, &Err(invalid(why)));
    }
    connection.answer(&header, &close(server))
}

/// Closes the session, and records that before any client learns of it. Kernels that do not end are ended with the
/// process, because no driver can end a single kernel.
fn close(server: &Arc<Server>) -> Result<GpuReply, Refusal> {
    let (tell, told) = mpsc::channel();
    let closing = Arc::clone(server);
    let close = move || {
        let engine = &closing.engine;
        let idle = || drop(tell.send(None));
        let closed = Stream::new(&engine.context, CLOSING_BYTES)
            .map_err(|error| engine.failed(&error, internal))
            .and_then(|mut stream| engine.close(&mut stream, idle));
        if closed.is_ok() {
            closing.note_wiped();
        }
        tell.send(Some(closed)).ok();
    };
    let thread = thread::Builder::new().name("close".into()).spawn(close);
    thread.map_err(|error| internal(format!("no thread to close the session: {error}")))?;
    let closed = match told.recv_timeout(KERNELS_END_WITHIN) {
        Ok(None) => told.recv().ok().flatten(),
        Ok(closed) => closed,
        Err(_) => None,
    };
    closed.unwrap_or_else(|| Err(server.engine.abandon(KERNELS_END_WITHIN)))
}

impl Queue<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let server = self.server;
        loop {
            self.expect(HEADER_LEN)?;
            if server.is_over() {
                self.answer().ok();
                self.running = None;
                server.leave_if_over();
            }
            if self.answers.is_empty() {
                self.running = None;
            }
            let Some(start) = self.connection.next()? else {
                return Ok(());
            };
            self.running.get_or_insert_with(|| server.running());
            match self.operation(start)? {
                Ok(operation) => self.operate(operation)?,
                Err(rejected) => {
                    self.answer()?;
                    return self.connection.reject(&rejected);
                }
            }
        }
    }

    fn operation(&mut self, start: Start) -> io::Result<Result<Operation, Rejected>> {
        match self.connection.head(start)? {
            Ok(head) => {
                self.expect(head.payload)?;
                self.connection.rest(head)
            }
            Err(rejected) => Ok(Err(rejected)),
        }
    }

    /// Sends the answers that are held back, unless this many bytes of the client have arrived: a client that has sent the
    /// next operation whole waits for none of them.
    fn expect(&mut self, bytes: usize) -> io::Result<()> {
        if self.answers.is_empty() || !self.answers.are_full() && self.connection.has(bytes)? {
            return Ok(());
        }
        self.answer()
    }

    /// Sends all answers.
    fn answer(&mut self) -> io::Result<()> {
        self.finish_copies();
        self.connection.send(&self.answers.take())
    }

    fn finish_copies(&mut self) {
        if self.answers.are_copying() {
            // What fails is the answer of each copy.
            self.synchronize().ok();
        }
    }

    fn operate(&mut self, operation: Operation) -> io::Result<()> {
        let Operation {
            header,
            request,
            descriptor,
        } = operation;
        let engine = &self.server.engine;
        let answer = match request {
            GpuRequest::Open { .. } => Err(invalid("this stream has opened its session already")),
            GpuRequest::MemAlloc { bytes } => engine.allocate(self.stream, bytes),
            GpuRequest::MemWrite {
                memory,
                offset,
                length,
            } => {
                let queued = self.write(memory, offset, length)?;
                self.answers.hold_copy(header, queued);
                return Ok(());
            }
            GpuRequest::ModuleLoad { length } => self.load(length)?,
            GpuRequest::Launch(launch) => self.launch(&launch),
            GpuRequest::Sync {
                whole_session: true,
            } => engine.synchronize().map(|()| GpuReply::Done),
            GpuRequest::Sync {
                whole_session: false,
            } => self.synchronize(),
            GpuRequest::MemRead {
                memory,
                offset,
                length,
            } => {
                return self.read(header, memory, offset, length);
            }
            GpuRequest::MemFree { memory } => engine.free(self.stream, memory),
            GpuRequest::ModuleUnload { module } => engine.unload(module),
            GpuRequest::Close => close(self.server),
            GpuRequest::MemShare { length } => self.share(descriptor, length),
            GpuRequest::MemWriteShared(copy) => self.copy_shared(&copy, Stream::send_shared),
            GpuRequest::MemReadShared(copy) => self.copy_shared(&copy, Stream::fetch_shared),
        };
        self.answers.hold(header, answer);
        Ok(())
    }

    fn failed(&self, error: &DriverError) -> Refusal {
        self.server.engine.failed(error, internal)
    }

    fn synchronize(&mut self) -> Result<GpuReply, Refusal> {
        let done = self.stream.synchronize();
        let done = done
            .map(|()| GpuReply::Done)
            .map_err(|error| self.failed(&error));
        self.answers.copied(&done);
        done
    }

    fn launch(&mut self, launch: &GpuLaunch) -> Result<GpuReply, Refusal> {
        let engine = &self.server.engine;
        let loaded = engine.module(launch.module)?;
        check_shape(engine.order.device.vendor, launch)?;
        let name = &launch.kernel;
        let kernel = loaded.kernel(name).map_err(|error| {
            if error.is_not_found() {
                let why = format!(
                    "module {:#x} has no kernel {name:?}: {error}",
                    launch.module
                );
                return not_found(why);
            }
            engine.failed(&error, internal)
        })?;
        check_arguments(launch, kernel.parameters.as_deref())?;
        engine.count_local(&kernel)?;
        self.arguments.set(&launch.arguments);
        let shape = Shape {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
        };
        let queue = || self.stream.launch(&kernel, shape, &mut self.arguments);
        let refused = |why: String| {
            let GpuLaunch {
                grid,
                block,
                shared_bytes,
                ..
            } = launch;
            invalid(format!(
                "kernel {name:?}, grid {grid:?}, block {block:?}, shared_bytes {shared_bytes}: {why}"
            ))
        };
        engine.launch(queue, refused)?;
        Ok(GpuReply::Done)
    }
}
