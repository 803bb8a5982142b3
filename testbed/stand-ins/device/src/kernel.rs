//! The kernels that the stand-in can execute, by name. All others do nothing.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use crate::{Grid, Knob, Status, context::Context};

/// Argument of `spin` for a kernel that ends only with its process.
const FOR_EVER: u64 = u64::MAX;

thread_local! {
    /// When the device has done the work that came before on the stream of this thread.
    static FREE_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A kernel with its arguments.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) grid: Grid,
    /// When it was launched.
    pub(crate) launched: Instant,
}

impl Kernel {
    /// Executes the kernel.
    pub(crate) fn run(&self, context: &Context) -> Result<(), Status> {
        context.device().knobs().hang(Knob::HangLaunch);
        match self.name.as_str() {
            "vector_add" => self.vector_add(context),
            "matmul_tiled" => self.matmul_tiled(context),
            "fill" => self.fill(context),
            "spin" => self.spin(),
            "fault" => Err(Status::ILLEGAL_ADDRESS),
            "read_past" => self.read_past(context),
            _ => Ok(()),
        }
    }

    /// An argument. For a kernel that is declared with other parameters, this reads bytes that are no argument.
    fn argument<const SIZE: usize>(&self, index: usize) -> Result<[u8; SIZE], Status> {
        let bytes = self.arguments.get(index).map(Vec::as_slice);
        let bytes = bytes.ok_or(Status::ILLEGAL_ADDRESS)?;
        bytes.try_into().ok().ok_or(Status::ILLEGAL_ADDRESS)
    }

    fn long(&self, index: usize) -> Result<u64, Status> {
        self.argument(index).map(u64::from_le_bytes)
    }

    fn int(&self, index: usize) -> Result<u32, Status> {
        self.argument(index).map(u32::from_le_bytes)
    }

    /// The number of threads of the grid in a dimension, at most `limit`.
    fn threads(&self, dimension: usize, limit: u32) -> usize {
        let (blocks, size) = (self.grid.blocks[dimension], self.grid.block[dimension]);
        let threads = u64::from(blocks) * u64::from(size);
        usize::try_from(threads.min(u64::from(limit))).unwrap_or(usize::MAX)
    }

    /// `c[i] = a[i] + b[i]` for each thread `i` below `n`: arguments a, b, c, n.
    fn vector_add(&self, context: &Context) -> Result<(), Status> {
        let count = self.threads(0, self.int(3)?);
        let a = floats(context, self.long(0)?, count)?;
        let b = floats(context, self.long(1)?, count)?;
        let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        context.write(self.long(2)?, &bytes(&sums))
    }

    /// `c = a b`, of `n` rows and columns each, row by row: arguments a, b, c, n.
    fn matmul_tiled(&self, context: &Context) -> Result<(), Status> {
        let n = self.int(3)?;
        let (columns, rows) = (self.threads(0, n), self.threads(1, n));
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let all = n.checked_mul(n).ok_or(Status::ILLEGAL_ADDRESS)?;
        let a = floats(context, self.long(0)?, all)?;
        let b = floats(context, self.long(1)?, all)?;
        let mut c = floats(context, self.long(2)?, all)?;
        for row in 0..rows {
            let result = &mut c[row * n..][..columns];
            result.fill(0.0);
            for (inner, factor) in a[row * n..][..n].iter().enumerate() {
                let of_b = &b[inner * n..][..columns];
                for (sum, value) in result.iter_mut().zip(of_b) {
                    *sum += factor * value;
                }
            }
        }
        context.write(self.long(2)?, &bytes(&c))
    }

    /// `p[i] = value` for each thread `i` below `n`: arguments p, value, n.
    fn fill(&self, context: &Context) -> Result<(), Status> {
        let count = self.threads(0, self.int(2)?);
        let value = self.int(1)?.to_le_bytes();
        context.write(self.long(0)?, &value.repeat(count))
    }

    /// Runs for this many nanoseconds: a cycle is a nanosecond. Kernels in a row take exactly the sum of theirs, however late
    /// this thread wakes up between them.
    fn spin(&self) -> Result<(), Status> {
        let cycles = self.long(0)?;
        if cycles == FOR_EVER {
            loop {
                thread::park();
            }
        }
        let free_at = FREE_AT.get().unwrap_or(self.launched);
        let ends = free_at.max(self.launched) + Duration::from_nanos(cycles);
        FREE_AT.set(Some(ends));
        thread::sleep(ends.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// `*out = *(p + n)`, of 32 bits: arguments p, out, n.
    fn read_past(&self, context: &Context) -> Result<(), Status> {
        let from = self.long(0)?.checked_add(self.long(2)?);
        let word = context.read(from.ok_or(Status::ILLEGAL_ADDRESS)?, 4)?;
        context.write(self.long(1)?, &word)
    }
}

fn floats(context: &Context, address: u64, count: usize) -> Result<Vec<f32>, Status> {
    let length = count.checked_mul(4).ok_or(Status::ILLEGAL_ADDRESS)?;
    // A range of 0 bytes may have any address.
    if length == 0 {
        return Ok(Vec::new());
    }
    let bytes = context.read(address, length)?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(words.map(|word| f32::from_le_bytes(*word)).collect())
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|it| it.to_le_bytes()).collect()
}
