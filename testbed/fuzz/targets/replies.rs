//! The client half of the UDP transport against a server that holds the key and may send any reply at any time:
//! the client never panics, and it ends.
#![no_main]

mod script;
mod server;

use std::time::Duration;

use fabricbios_fallback_udp::transfer::{Driven, Requester, Transfer, Work};
use libfuzzer_sys::fuzz_target;
use script::Script;
use server::{GIVE_UP, reply, setup};

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let mut requester = Requester::new(setup(&mut script));
    let from = vec![1; script.small() as usize % 70_000];
    let mut into = vec![0; script.small() as usize % 70_000];
    let mut now = Duration::from_secs(1);
    let (offset, work) = (script.number(), script.byte().unwrap_or(0));
    now = run(
        requester.transfer(
            Work::Write {
                offset,
                from: &from,
            },
            now,
        ),
        &mut script,
        now,
    );
    let work = match work % 3 {
        0 => Work::Read {
            offset,
            into: &mut into,
        },
        1 => Work::Ping,
        _ => Work::Hello,
    };
    run(requester.transfer(work, now), &mut script, now);
});

/// Runs the client to its end: with replies as long as the script lasts, then without any.
fn run(mut transfer: Transfer<'_>, script: &mut Script<'_>, mut now: Duration) -> Duration {
    let began = now;
    let mut asked = Vec::new();
    while transfer.outcome().is_none() {
        while let Some(transmit) = transfer.poll_transmit(now) {
            let mut datagram = transmit.prefix.to_vec();
            datagram.extend_from_slice(transmit.payload);
            asked.push(datagram);
        }
        match script.byte() {
            Some(step) => {
                let reply = reply(step, &asked, None, script);
                now += Duration::from_millis(u64::from(step));
                transfer.on_datagram(&reply, now);
            }
            None => now = transfer.next_timeout().unwrap_or(now).max(now),
        }
        // At most one operation was done per step of the script.
        let steps = u32::try_from(script.0.len()).unwrap_or(u32::MAX).max(1);
        assert!(
            now < began + GIVE_UP * 4096 || steps > 4096,
            "it does not end"
        );
    }
    now
}
