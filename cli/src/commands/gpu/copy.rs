//! `gpu copy`: random bytes to the device and back.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use fabricbios_client::{GpuSession, Node};
use fabricbios_wire::{RefusalClass, Size};
use serde::Serialize;

use super::{Left, Used};
use crate::{
    args::GpuCopy,
    failure::{Exit, Failure},
    output::{Output, one_line},
    progress::Progress,
};

/// Bytes that are made, copied and compared at once.
const PART_BYTES: usize = 64 << 20;

#[derive(Serialize)]
struct Copied<'a> {
    lease_id: String,
    /// As text: it has more bits than the numbers of many readers of JSON.
    session: String,
    device: &'a str,
    uuid: &'a str,
    bytes: u64,
    over: &'static str,
    write_us: u64,
    read_us: u64,
    /// 10^6 bytes in a second.
    write_mb_per_sec: f64,
    read_mb_per_sec: f64,
    #[serde(flatten)]
    left: Left,
}

pub(super) fn run(node: Option<&Node>, what: GpuCopy, output: Output) -> Result<(), Failure> {
    let GpuCopy { place, bytes } = what;
    let over = match &place.local_socket {
        Some(_) => "local socket",
        None => "network",
    };
    let used = Used::open(node, place)?;
    let (lease_id, info) = (used.lease_id, used.session.info().clone());
    let ((wrote, read), left) = used.finish(|session| copy(session, bytes, output))?;
    let json = Copied {
        lease_id: lease_id.to_string(),
        session: info.session.to_string(),
        device: &info.device,
        uuid: &info.uuid,
        bytes,
        over,
        write_us: micros(wrote),
        read_us: micros(read),
        write_mb_per_sec: speed(bytes, wrote),
        read_mb_per_sec: speed(bytes, read),
        left,
    };
    output.print(&json, || {
        format!(
            "{} to {} and back over the {over}, unchanged: {:.0} MB/s there, {:.0} MB/s back\n{}",
            Size(bytes),
            one_line(&info.device),
            json.write_mb_per_sec,
            json.read_mb_per_sec,
            json.left.line(lease_id)
        )
    })
}

/// The times of the copies alone, both ways.
fn copy(session: &GpuSession, bytes: u64, output: Output) -> Result<(Duration, Duration), Failure> {
    let memory = session.mem_alloc(bytes)?;
    let seed = RandomState::new().hash_one(bytes);
    let part_bytes = usize::try_from(bytes).map_or(PART_BYTES, |it| it.min(PART_BYTES));
    let (mut part, mut back) = (vec![0; part_bytes], Vec::new());
    let mut progress = Progress::new(Some(2 * bytes), output);
    let [mut wrote, mut read] = [Duration::ZERO; 2];
    for (at, length) in parts(bytes) {
        let part = &mut part[..length];
        fill(part, seed ^ at);
        let begun = Instant::now();
        session.mem_write_with_progress(&memory, at, part, |done| progress.at(at + done))?;
        wrote += begun.elapsed();
    }
    back.resize(part_bytes, 0);
    for (at, length) in parts(bytes) {
        let (part, back) = (&mut part[..length], &mut back[..length]);
        let begun = Instant::now();
        let told = |done| progress.at(bytes + at + done);
        session.mem_read_with_progress(&memory, at, back, told)?;
        read += begun.elapsed();
        fill(part, seed ^ at);
        if let Some(place) = { part.iter().zip(back.iter()) }.position(|(one, two)| one != two) {
            let message = format!("byte {} of {bytes} came back changed", at + place as u64);
            let class = RefusalClass::Permanent;
            return Err(Failure::new(Exit::Other, class, "Changed", message));
        }
    }
    Ok((wrote, read))
}

/// Start and length of each part.
fn parts(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let starts = (0..bytes).step_by(PART_BYTES);
    starts.map(move |at| {
        let left = usize::try_from(bytes - at).unwrap_or(PART_BYTES);
        (at, left.min(PART_BYTES))
    })
}

/// Fills a part with numbers of the generator SplitMix64.
fn fill(part: &mut [u8], mut state: u64) {
    for chunk in part.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn speed(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}
