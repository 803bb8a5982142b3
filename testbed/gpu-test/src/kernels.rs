//! Kernels whose results the CPU checks.

use anyhow::Result;
use fabricbios_client::{Argument, GpuModule, GpuSession};

use crate::{Arguments, node::Daemon, report::Report, scenarios::lease};

/// PTX of the kernels; the stand-ins know them by name.
pub(crate) const SPIN: &[u8] = include_bytes!("../../stand-ins/ptx/spin.ptx");
const VECTOR_ADD: &[u8] = include_bytes!("../../stand-ins/ptx/vector_add.ptx");
const MATMUL: &[u8] = include_bytes!("../../stand-ins/ptx/matmul_tiled.ptx");

/// Edge of a tile of the matrix product, in threads.
const TILE: u32 = 16;

/// Different numbers whose sums are exact.
fn numbers(count: u32, seed: u32) -> Vec<f32> {
    let value = |at: u32| {
        f32::from((at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24).to_le_bytes()[0])
    };
    (0..count).map(value).collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// The sum of two vectors.
pub(crate) fn vector_add(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    const COUNT: u32 = 1_000_003;
    let lease = lease(&daemon.tenant("blue")?, 60)?;
    let session = GpuSession::new(&lease)?;
    let is_right = adds(&session, COUNT, 0)?;
    report.check(
        "vector add: as on the CPU",
        is_right,
        format!("{COUNT} numbers"),
    );
    lease.free()?;
    Ok(())
}

/// Whether a session adds two vectors as the CPU does, after a kernel that runs for so many cycles.
pub(crate) fn adds(session: &GpuSession, count: u32, cycles: u64) -> Result<bool> {
    let (a, b) = (numbers(count, 1), numbers(count, 2));
    let length = u64::from(count) * 4;
    let [first, second, sum] = [
        session.mem_alloc(length)?,
        session.mem_alloc(length)?,
        session.mem_alloc(length)?,
    ];
    session.mem_write(&first, 0, &bytes_of(&a))?;
    session.mem_write(&second, 0, &bytes_of(&b))?;
    let module = session.module_load(VECTOR_ADD)?;
    let _spin = spin(session, cycles)?;
    let arguments = [
        Argument::Memory(&first),
        Argument::Memory(&second),
        Argument::Memory(&sum),
        Argument::from(count),
    ];
    session.launch(
        &module,
        "vector_add",
        [count.div_ceil(256), 1, 1],
        [256, 1, 1],
        0,
        &arguments,
    )?;
    session.sync()?;
    let mut got = vec![0; usize::try_from(length)?];
    session.mem_read(&sum, 0, &mut got)?;
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    Ok(numbers_of(&got) == expected)
}

/// Queues a kernel that runs for so many cycles of the device; the stand-ins count them as nanoseconds. u64::MAX: for
/// ever. Returns its module, whose unloading waits for the kernel.
#[must_use = "the session waits for the kernel when the module is dropped"]
pub(crate) fn spin(session: &GpuSession, cycles: u64) -> Result<GpuModule> {
    let module = session.module_load(SPIN)?;
    let arguments = [Argument::from(cycles)];
    session.launch(&module, "spin", [1; 3], [1; 3], 0, &arguments)?;
    Ok(module)
}

/// The product of two matrices, in tiles of shared memory.
pub(crate) fn matrix(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    const EDGE: u32 = 128;
    let lease = lease(&daemon.tenant("blue")?, 60)?;
    let session = GpuSession::new(&lease)?;
    let edge = EDGE as usize;
    let (a, b) = (numbers(EDGE * EDGE, 3), numbers(EDGE * EDGE, 4));
    let length = u64::from(EDGE) * u64::from(EDGE) * 4;
    let [left, right, product] = [
        session.mem_alloc(length)?,
        session.mem_alloc(length)?,
        session.mem_alloc(length)?,
    ];
    session.mem_write(&left, 0, &bytes_of(&a))?;
    session.mem_write(&right, 0, &bytes_of(&b))?;
    let module = session.module_load(MATMUL)?;
    let arguments = [
        Argument::Memory(&left),
        Argument::Memory(&right),
        Argument::Memory(&product),
        Argument::from(EDGE),
    ];
    let grid = [EDGE / TILE, EDGE / TILE, 1];
    session.launch(
        &module,
        "matmul_tiled",
        grid,
        [TILE, TILE, 1],
        0,
        &arguments,
    )?;
    session.sync()?;
    let mut got = vec![0; usize::try_from(length)?];
    session.mem_read(&product, 0, &mut got)?;
    let got = numbers_of(&got);
    // Whole numbers below 2^24 are exact in any order of the sums.
    let wrong = (0..edge * edge).find(|at| {
        let (row, column) = (at / edge, at % edge);
        let sum: f32 = (0..edge)
            .map(|k| a[row * edge + k] * b[k * edge + column])
            .sum();
        got[*at] != sum
    });
    report.check(
        "tiled matrix product: as on the CPU",
        wrong.is_none(),
        format!("{EDGE} × {EDGE}, first difference {wrong:?}"),
    );
    lease.free()?;
    Ok(())
}
