//! Lives across restarts that random lives rarely reach, each with the defect that it would reveal.

use super::*;

use Action::{Alloc, Bind, ClearFence, Free, Pass, Renew, Report as Told, Restart, Revoke, Rotate};
use Asker::{Holder, Operator};
use Outcome::{Failed, Fine, Stranded};

const DONE: Action = Told(0, Fine);
const DUE: Action = Pass(Step::Due);
const SAME_BOOT: EarlierRun = EarlierRun {
    same_boot: true,
    wall_clock_trusted: true,
};
const OTHER_BOOT: EarlierRun = EarlierRun {
    same_boot: false,
    ..SAME_BOOT
};
const AT_ONCE: Action = Restart(Step::Nanos(1), SAME_BOOT, 0);
const REBOOT: Action = Restart(Step::Nanos(1), OTHER_BOOT, 0);

fn lease(transport: Transport, secs: u32, grace: u32) -> Wish {
    Wish {
        tenant: 0,
        bytes: PAGE,
        secs,
        grace,
        transport,
        peer: Peer::None,
        rotate_on_renew: true,
        arena: Some(0),
        kind: ResourceType::Mem,
        terms: Terms::PLAIN,
        token: Token::Fresh,
    }
}

fn udp(secs: u32, grace: u32) -> Action {
    Alloc(lease(Transport::Udp, secs, grace))
}

/// The term ended while the daemon was down, without a cut: the bytes could not be released.
#[test]
fn a_lease_adopted_in_grace_is_released_without_a_cut() {
    let late = Restart(Step::Millis(3_000), SAME_BOOT, 0);
    live(&[
        udp(2, 9),
        DONE,
        late,
        DUE,
        Told(0, Failed),
        ClearFence(Operator, 0),
    ]);
}

/// A client that had waited long got an answer with a term that the next restart did not know.
#[test]
fn a_term_that_was_told_before_its_binding_is_kept() {
    let renewed = [udp(2, 9), DONE, DUE, DONE, Renew(Holder, 0, 100)];
    let told = [Pass(Step::Millis(30_000)), AT_ONCE, DONE];
    live(&[&renewed[..], &told].concat());
}

/// The bytes of a clean lease would have stayed reserved for it although they had a new holder.
#[test]
fn a_fence_that_was_cleared_keeps_nothing_when_another_stands() {
    let cleared = [
        udp(60, 0),
        DONE,
        Free(Holder, 0),
        Told(0, Failed),
        ClearFence(Operator, 0),
        DONE,
    ];
    let again = [
        udp(60, 0),
        DONE,
        udp(60, 0),
        DONE,
        Revoke(Operator, 1),
        Told(0, Failed),
    ];
    live(&[&cleared[..], &again, &[AT_ONCE, REBOOT]].concat());
}

/// A remediation ends with its process.
#[test]
fn a_remediation_dies_with_the_process() {
    let fenced = [udp(60, 0), DONE, Free(Holder, 0), Told(0, Failed)];
    let clear = ClearFence(Operator, 0);
    live(&[&fenced[..], &[clear, AT_ONCE, clear, DONE]].concat());
}

/// A rotation of the dead process would have prevented the bind of its lease.
#[test]
fn what_was_on_its_way_is_not_waited_for() {
    let rotate = Rotate(Holder, 0, 8_000);
    live(&[
        udp(60, 0),
        DONE,
        rotate,
        AT_ONCE,
        AT_ONCE,
        DONE,
        rotate,
        DONE,
        AT_ONCE,
    ]);
}

/// The lease was not granted, and its remains could reach the bytes of the next lease.
#[test]
fn what_strands_before_the_grant_is_fenced_after_a_restart_too() {
    live(&[
        udp(60, 0),
        Told(0, Stranded),
        AT_ONCE,
        ClearFence(Operator, 0),
        DONE,
    ]);
}

/// No defect: without its queue pairs a lease over both transports goes on over one.
#[test]
fn a_lease_over_both_transports_waits_for_queue_pairs_again() {
    let wish = Wish {
        peer: Peer::Several(2),
        ..lease(Transport::Both, 60, 0)
    };
    let bind = Bind(Holder, 0, Peer::Several(1));
    let rotate = Rotate(Holder, 0, 0);
    live(&[
        Alloc(wish),
        DONE,
        AT_ONCE,
        DONE,
        rotate,
        DONE,
        DONE,
        bind,
        DONE,
        rotate,
    ]);
}

/// No defect: a binding that fails after a restart is made again by the rotation.
#[test]
fn an_adopted_lease_without_a_key_gets_one() {
    live(&[
        udp(60, 0),
        DONE,
        AT_ONCE,
        Told(0, Failed),
        Rotate(Holder, 0, 0),
        DONE,
    ]);
}
