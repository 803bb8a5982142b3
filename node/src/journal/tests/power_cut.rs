//! A power cut at any moment, with checkpoints and an end in order among them.

use super::*;

/// The files after a power cut: of each everything synced, and of the other writes those that `reached` the disk.
fn image(asked: &[Asked], mut reached: impl FnMut() -> bool) -> [Vec<u8>; 2] {
    let synced = [Which::Base, Which::Log].map(|which| {
        let is_sync = |it: &Asked| matches!(it, Asked::Sync(of) if *of == which);
        asked.iter().rposition(is_sync).unwrap_or(0)
    });
    let mut files = [vec![], vec![]];
    for (at, asked) in asked.iter().enumerate() {
        match asked {
            Asked::SetLen(len) => files[0].resize(usize::try_from(*len).unwrap(), 0),
            Asked::NewLog => files[1].clear(),
            Asked::Write(which, offset, data) => {
                let file = &mut files[*which as usize];
                let start = usize::try_from(*offset).unwrap();
                file.resize(file.len().max(start + data.len()), 0);
                // A disk writes sectors.
                let sectors = file[start..].chunks_mut(512).zip(data.chunks(512));
                for (old, new) in sectors {
                    if at < synced[*which as usize] || reached() {
                        old[..new.len()].copy_from_slice(new);
                    }
                }
            }
            Asked::Sync(_) => {}
        }
    }
    files
}

#[test]
fn a_power_cut_at_any_moment_leaves_whole_groups_and_all_that_was_reported() {
    let scene = Scene::new();
    let (tell, reports) = channel();
    let meter = Arc::<Meter>::default();
    let journal = open_metered(&scene.path(), tell, &meter);
    let mut reported = vec![meter.faults.asked().len()];
    // Some of these fill a half of the log.
    let value = "value".repeat(4000);
    for id in 1..=7 {
        // A group has both or none: the new lease and the end of the previous lease.
        let group = vec![put(id, &value), remove(id - 1)];
        await_durable(&reports, journal.submit(group));
        reported.push(meter.faults.asked().len());
    }
    journal.close().unwrap();
    let asked = meter.faults.asked();
    let after_cut = Scene::new();
    let mut coin = 0x2545_F491_4F6C_DD1D_u64;
    for moment in reported[0]..=asked.len() {
        let durable = reported.iter().rposition(|&at| at <= moment).unwrap();
        for round in 0..3 {
            let reached = || {
                coin ^= coin << 13;
                coin ^= coin >> 7;
                coin ^= coin << 17;
                round == 0 || coin.is_multiple_of(2)
            };
            let [base, log] = image(&asked[..moment], reached);
            fs::write(after_cut.path(), base).unwrap();
            fs::write(after_cut.log(), log).unwrap();
            let (_journal, recovered, _reports) = after_cut.open();
            let ids: Vec<_> = leases(&recovered).iter().map(|(id, _)| *id).collect();
            let whole = |group: usize| {
                ids == if group == 0 {
                    vec![]
                } else {
                    vec![group as u128]
                }
            };
            assert!(
                whole(durable) || whole(durable + 1),
                "{moment}: {ids:?}, reported {durable}"
            );
        }
    }
}
