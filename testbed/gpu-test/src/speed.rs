//! The cost of a session, as ratios to a peer of the same run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fabricbios_client::{
    Argument, GpuLease, GpuMemory, GpuSession, LocalOptions, wire::GPU_MODULE_BYTES_MAX,
};

use crate::{Arguments, bare, kernels::SPIN, node::Daemon, report::Report, scenarios::lease};

/// Compares copies over the local socket with shared memory with the bare driver, copies over the network with copies
/// of the same bytes over the same connection that reach no device, and launches with the bare driver.
pub(crate) fn measure(
    arguments: &Arguments,
    daemon: &mut Daemon,
    report: &mut Report,
) -> Result<()> {
    let tenant = daemon.tenant("blue")?;
    let held = lease(&tenant, 600)?;
    let session = GpuSession::new(&held)?;
    let room = session.info().vram_bytes / 4;
    let bytes = (arguments.copy_mib << 20).min(room);
    let binding = held.binding();
    let device = binding.gpu().context("the binding of a GPU")?;
    let rounds = arguments.rounds;
    remote(&session, bytes, rounds, report)?;
    let remote_launch = launches(&session, rounds)?;
    let local = local(&held, daemon, bytes, rounds)?;
    session.close()?;
    held.free()?;
    // Leased and without a session: no other process uses the device meanwhile, and it has been wiped.
    let idle = lease(&tenant, 600)?;
    let bare = bare::measure(device, bytes, rounds)?;
    idle.free()?;
    report.check("the driver pins memory that is shared", bare.is_pinned, "");
    let ratio = |of: &[Duration], to: &[Duration]| -> Vec<f64> {
        let peer = median(to).as_secs_f64();
        of.iter().map(|it| peer / it.as_secs_f64()).collect()
    };
    let rate = |times: &[Duration]| -> Vec<f64> {
        times
            .iter()
            .map(|it| bytes as f64 / it.as_secs_f64() / 1e9)
            .collect()
    };
    let us = |times: &[Duration]| -> Vec<f64> {
        times.iter().map(|it| it.as_secs_f64() * 1e6).collect()
    };
    report.figure("bare driver, to the device", "GB/s", rate(&bare.write));
    report.figure("bare driver, from the device", "GB/s", rate(&bare.read));
    report.figure(
        "local session, to the device, of the bare driver's speed",
        "×",
        ratio(&local.write, &bare.write),
    );
    report.figure(
        "local session, from the device, of the bare driver's speed",
        "×",
        ratio(&local.read, &bare.read),
    );
    report.figure("bare driver, launch and wait", "µs", us(&bare.launch));
    report.figure("local session, launch and wait", "µs", us(&local.launch));
    report.figure("remote session, launch and wait", "µs", us(&remote_launch));
    Ok(())
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Copies over the network: to device memory, and as an invalid module. The worker reads the bytes of the module over
/// the same connection, and refuses them before they reach the device.
fn remote(session: &GpuSession, bytes: u64, rounds: usize, report: &mut Report) -> Result<()> {
    let bytes = bytes.min(GPU_MODULE_BYTES_MAX.into());
    let memory = session.mem_alloc(bytes)?;
    let mut data = vec![0x5a; usize::try_from(bytes)?];
    let (mut ratios, mut rates, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let without = timed(|| match session.module_load(&data) {
            Ok(_) => bail!("a module of the letter Z was taken"),
            Err(_) => Ok(()),
        })?;
        let with = timed(|| Ok(session.mem_write(&memory, 0, &data)?))?;
        let read = timed(|| Ok(session.mem_read(&memory, 0, &mut data)?))?;
        if round > 0 {
            ratios.push(without.as_secs_f64() / with.as_secs_f64());
            rates.push(bytes as f64 / with.as_secs_f64() / 1e9);
            reads.push(bytes as f64 / read.as_secs_f64() / 1e9);
        }
    }
    report.figure("remote session, to the device", "GB/s", rates);
    report.figure("remote session, from the device", "GB/s", reads);
    report.figure(
        "remote session, to the device, of the speed without a device",
        "×",
        ratios,
    );
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Launches of a kernel that ends at once, each with a wait for its end.
fn launches(session: &GpuSession, rounds: usize) -> Result<Vec<Duration>> {
    let module = session.module_load(SPIN)?;
    let mut times = Vec::new();
    for round in 0..=rounds {
        let took = timed(|| {
            let arguments = [Argument::from(0_u64)];
            session.launch(&module, "spin", [1; 3], [1; 3], 0, &arguments)?;
            Ok(session.sync()?)
        })?;
        if round > 0 {
            times.push(took);
        }
    }
    Ok(times)
}

fn local(held: &GpuLease, daemon: &Daemon, bytes: u64, rounds: usize) -> Result<bare::Times> {
    let options = LocalOptions::default().shared_bytes(usize::try_from(bytes)?);
    let session = GpuSession::local_with(&held.lease_id(), daemon.local_socket(), options)?;
    session.shared_memory().context("shared memory")?;
    let memory: GpuMemory = session.mem_alloc(bytes)?;
    let mut times = bare::Times::default();
    for round in 0..=rounds {
        let write = timed(|| Ok(session.mem_write_shared(&memory, 0, 0, bytes)?))?;
        let read = timed(|| Ok(session.mem_read_shared(&memory, 0, 0, bytes)?))?;
        if round > 0 {
            times.write.push(write);
            times.read.push(read);
        }
    }
    times.launch = launches(&session, rounds)?;
    Ok(times)
}
