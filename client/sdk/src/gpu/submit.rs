//! One kernel from bytes to bytes.

use super::{Argument, GpuMemory, GpuSession, Wiped};
use crate::{Error, GpuLease, runtime::wait};

/// A kernel with its inputs and outputs as bytes: [`GpuLease::submit`] copies them to and from the device. The
/// arguments are in the order of the calls.
///
/// ```no_run
/// # fn main() -> Result<(), fabricbios_client::Error> {
/// # let (ptx, a, b) = (vec![0], vec![0; 4096], vec![0; 4096]);
/// use fabricbios_client::{GpuBuilder, Submission};
///
/// let lease = GpuBuilder::new().min_vram(1 << 20).acquire()?;
/// let sum = Submission::new(&ptx, "vector_add")
///     .grid([4, 1, 1])
///     .block([256, 1, 1])
///     .input(&a)
///     .input(&b)
///     .output(4096)
///     .value(1024_u32);
/// let outputs = lease.submit(&sum)?.outputs;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before it is submitted"]
pub struct Submission<'a> {
    module: &'a [u8],
    kernel: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: Vec<Given<'a>>,
}

#[derive(Clone, Debug)]
enum Given<'a> {
    Value(Argument<'a>),
    /// Memory with these contents, or of this many bytes if there are no contents.
    Memory {
        from: Option<&'a [u8]>,
        bytes: u64,
        is_zeroed: bool,
        is_output: bool,
    },
}

/// The result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The contents of each output, in the order of the arguments.
    pub outputs: Vec<Vec<u8>>,
    /// What was wiped at the end of the session.
    pub wiped: Wiped,
}

impl<'a> Submission<'a> {
    /// A kernel of this module, in one block of one thread.
    pub fn new(module: &'a [u8], kernel: &'a str) -> Self {
        Self {
            module,
            kernel,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            arguments: Vec::new(),
        }
    }

    /// Sets the number of blocks: x, y, z.
    pub fn grid(mut self, blocks: [u32; 3]) -> Self {
        self.grid = blocks;
        self
    }

    /// Sets the number of threads of a block: x, y, z.
    pub fn block(mut self, threads: [u32; 3]) -> Self {
        self.block = threads;
        self
    }

    /// Sets the dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Adds an argument: a pointer to a copy of these bytes.
    pub fn input(self, from: &'a [u8]) -> Self {
        self.memory(Some(from), from.len() as u64, false)
    }

    /// Adds an argument: a pointer to this many bytes, which are an output.
    pub fn output(self, bytes: u64) -> Self {
        self.memory(None, bytes, true)
    }

    /// Adds an argument: a pointer to a copy of these bytes, which is an output too.
    pub fn in_out(self, from: &'a [u8]) -> Self {
        self.memory(Some(from), from.len() as u64, true)
    }

    /// Adds an argument: a pointer to this many zeros.
    pub fn zeroed(mut self, bytes: u64) -> Self {
        self.arguments.push(Given::Memory {
            from: None,
            bytes,
            is_zeroed: true,
            is_output: false,
        });
        self
    }

    /// Adds an argument that is no pointer, or points to memory of the session.
    pub fn value(mut self, value: impl Into<Argument<'a>>) -> Self {
        self.arguments.push(Given::Value(value.into()));
        self
    }

    fn memory(mut self, from: Option<&'a [u8]>, bytes: u64, is_output: bool) -> Self {
        self.arguments.push(Given::Memory {
            from,
            bytes,
            is_zeroed: false,
            is_output,
        });
        self
    }

    /// Runs the kernel in an open session, blocking, and frees what it used there. Returns the contents of each output.
    pub fn run(&self, session: &GpuSession) -> Result<Vec<Vec<u8>>, Error> {
        wait(self.run_async(session))
    }

    /// Runs the kernel in an open session; see [`Submission::run`].
    pub async fn run_async(&self, session: &GpuSession) -> Result<Vec<Vec<u8>>, Error> {
        let module = session.module_load_async(self.module).await?;
        let mut memories: Vec<Option<GpuMemory>> = Vec::new();
        for argument in &self.arguments {
            memories.push(match argument {
                Given::Value(_) => None,
                Given::Memory { .. } => Some(argument.place(session).await?),
            });
        }
        let mut arguments = Vec::new();
        for (argument, memory) in self.arguments.iter().zip(&memories) {
            match (argument, memory) {
                (Given::Value(value), _) => arguments.push(*value),
                (_, Some(memory)) => arguments.push(Argument::Memory(memory)),
                (Given::Memory { .. }, None) => {}
            }
        }
        let Self { grid, block, .. } = *self;
        session
            .launch_async(
                &module,
                self.kernel,
                grid,
                block,
                self.shared_bytes,
                &arguments,
            )
            .await?;
        session.sync_async().await?;
        let mut outputs = Vec::new();
        for (argument, memory) in self.arguments.iter().zip(&memories) {
            if let (
                Given::Memory {
                    is_output: true, ..
                },
                Some(memory),
            ) = (argument, memory)
            {
                let mut contents = vec![0; host_bytes(memory.bytes())?];
                session.mem_read_async(memory, 0, &mut contents).await?;
                outputs.push(contents);
            }
        }
        Ok(outputs)
    }
}

impl Given<'_> {
    /// Makes the memory of the argument.
    async fn place(&self, session: &GpuSession) -> Result<GpuMemory, Error> {
        let Self::Memory {
            from,
            bytes,
            is_zeroed,
            ..
        } = self
        else {
            return Err(Error::Usage("a value has no memory".to_owned()));
        };
        let memory = session.mem_alloc_async(*bytes).await?;
        if let Some(from) = from {
            session.mem_write_async(&memory, 0, from).await?;
        }
        if *is_zeroed {
            let zeros = vec![0; host_bytes((*bytes).min(ZEROS))?];
            let mut at = 0;
            while at < *bytes {
                let left = host_bytes(*bytes - at)?.min(zeros.len());
                session.mem_write_async(&memory, at, &zeros[..left]).await?;
                at += left as u64;
            }
        }
        Ok(memory)
    }
}

/// Bytes of zeros that are written at a time.
const ZEROS: u64 = 64 << 20;

fn host_bytes(bytes: u64) -> Result<usize, Error> {
    usize::try_from(bytes).map_err(|error| Error::Usage(format!("{bytes} bytes: {error}")))
}

impl GpuLease {
    /// Opens the session of the lease, runs the kernel in it and closes it, blocking.
    pub fn submit(&self, submission: &Submission<'_>) -> Result<Submitted, Error> {
        wait(self.submit_async(submission))
    }

    /// Opens the session of the lease, runs the kernel in it and closes it, also after a failure.
    pub async fn submit_async(&self, submission: &Submission<'_>) -> Result<Submitted, Error> {
        let session = GpuSession::new_async(self).await?;
        let outputs = submission.run_async(&session).await;
        let wiped = session.close_async().await;
        let outputs = outputs?;
        let wiped = wiped?;
        Ok(Submitted { outputs, wiped })
    }
}
