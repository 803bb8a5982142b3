//! The size of a launch and its arguments, as C callers give them.

use std::time::Instant;

use crate::{Entry, Status, Words, kernel::Kernel};

/// Most threads of a multiprocessor at the same time.
pub(crate) const RESIDENT_MAX: u32 = 2048;
/// Most threads of a block, in total and in each dimension.
pub(crate) const THREADS_MAX: u32 = 1024;
pub(crate) const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Most blocks in each dimension.
pub(crate) const BLOCKS_MAX: [u32; 3] = [i32::MAX.cast_unsigned(), 65535, 65535];
/// Shared memory of a block in bytes.
pub(crate) const SHARED_MAX: u32 = 48 << 10;

/// The size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in each dimension.
    pub blocks: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Shared memory of a block in bytes.
    pub shared: u32,
}

impl Grid {
    /// Whether the device can execute the launch.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let within = |sizes: [u32; 3], limits: [u32; 3]| {
            let mut each = sizes.iter().zip(limits);
            each.all(|(size, limit)| (1..=limit).contains(size))
        };
        let threads: u128 = self.block.iter().copied().map(u128::from).product();
        within(self.blocks, BLOCKS_MAX)
            && within(self.block, BLOCK_MAX)
            && threads <= u128::from(THREADS_MAX)
            && self.shared <= SHARED_MAX
    }
}

/// A kernel that is ready for a stream. Its arguments are copied.
pub(crate) fn kernel(entry: &Entry, grid: Grid, parameters: &Words) -> Result<Kernel, Status> {
    let takes = entry.block.is_none_or(|block| block == grid.block);
    if !takes || !grid.is_possible() {
        return Err(Status::INVALID_VALUE);
    }
    let each = entry.parameters.iter().enumerate();
    let arguments = each.map(|(index, it)| Ok(parameters.get(index)?.get(it.size)?));
    Ok(Kernel {
        name: entry.name.clone(),
        arguments: arguments.collect::<Result<_, Status>>()?,
        grid,
        launched: Instant::now(),
    })
}
