//! Lives in which the table once differed from its documentation, each with the difference, and some lives without a
//! defect that random lives rarely reach.

use super::*;

use Action::{
    Again, Alloc, Bind, ClearFence, Drain, Free, Join, Leave, Moves, Pass, Paths, Renew,
    Report as Told, Revoke, Rotate,
};
use Asker::{Holder, Operator};
use Outcome::{Cancelled, Failed, Fine, Moving, Stranded};

fn lease(secs: u32, grace: u32) -> Wish {
    Wish {
        tenant: 0,
        bytes: PAGE,
        secs,
        grace,
        transport: Transport::Rdma,
        peer: Peer::Port(0),
        rotate_on_renew: false,
        arena: None,
        kind: ResourceType::Mem,
        terms: Terms::PLAIN,
        token: Token::Fresh,
    }
}

fn rotating(secs: u32, grace: u32) -> Wish {
    Wish {
        rotate_on_renew: true,
        ..lease(secs, grace)
    }
}

const DUE: Action = Pass(Step::Due);
const DONE: Action = Told(0, Fine);

/// The end of a lease after its grace time was not written down: a restart would have reported it as revoked.
#[test]
fn the_end_of_grace_is_written_down() {
    live(&[Alloc(lease(1, 1)), DONE, DUE, DONE, DUE]);
}

/// The end of a lease whose grace time a drain ended was not written down.
#[test]
fn a_drain_in_grace_is_written_down() {
    live(&[Alloc(lease(1, 1)), DONE, DUE, DONE, Drain]);
}

/// A client freed a lease during the cut at its deadline. The answer named a grace time, and the bytes stayed taken.
#[test]
fn a_lease_freed_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Free(Holder, 0), DONE]);
}

/// The operator got the answer that the lease is torn down, but the holder could renew it in its grace time.
#[test]
fn a_lease_revoked_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Revoke(Operator, 0), DONE]);
}

/// A drain would have waited for the grace time.
#[test]
fn a_lease_drained_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Drain, DONE]);
}

/// A key that the cut had ended still prevented renewals.
#[test]
fn an_old_key_does_not_outlive_the_cut() {
    let rotate = Rotate(Holder, 0, 8_000);
    let renew = Renew(Holder, 0, 0);
    live(&[Alloc(rotating(1, 9)), DONE, rotate, DONE, DUE, DONE, renew]);
}

/// While the new binding was being made, the holder saw the coordinates of the dead one.
#[test]
fn a_renewal_in_grace_tells_no_dead_key() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, DONE, Renew(Holder, 0, 0)]);
}

/// The release that waited for the bind was ordered, and its success cleared the fence although something was left
/// behind.
#[test]
fn a_bind_that_strands_after_a_fence_is_not_cleared_by_the_release() {
    let fenced = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Failed)];
    live(
        &[
            &fenced[..],
            &[Told(0, Stranded), ClearFence(Operator, 0), DONE],
        ]
        .concat(),
    );
}

/// A release was ordered for a binding that had just been reported as stranded.
#[test]
fn a_bind_that_strands_after_the_cut_is_not_released() {
    let cut = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Fine)];
    live(&[&cut[..], &[Told(0, Stranded)]].concat());
}

/// An earlier remediation cleared a fence that it had not verified.
#[test]
fn a_remediation_clears_no_fence_that_is_younger() {
    let two = [Alloc(lease(20, 0)), DONE, Alloc(lease(20, 0)), DONE];
    let first = [Free(Holder, 0), Told(0, Failed), ClearFence(Operator, 0)];
    let second = [Free(Holder, 1), Told(1, Failed), DONE];
    live(&[&two[..], &first, &second].concat());
}

/// The repeated report of a bind was taken for the report of the rotation under way.
#[test]
fn a_bind_reported_again_is_not_a_rotation() {
    let rotate = Rotate(Holder, 0, 8_000);
    live(&[Alloc(lease(20, 0)), DONE, rotate, Again(0), Free(Holder, 0)]);
}

/// The repeated report of a rotation retired the old key twice.
#[test]
fn a_rotation_reported_again_retires_nothing() {
    live(&[
        Alloc(lease(20, 0)),
        DONE,
        Rotate(Holder, 0, 0),
        DONE,
        Again(1),
    ]);
}

/// Two arenas were full, and the smaller one could never meet the request. The refusal was permanent, although the
/// larger one could meet it later.
#[test]
fn no_room_now_is_not_no_room_ever() {
    let wish = |arena, bytes| Wish {
        transport: Transport::Udp,
        peer: Peer::None,
        arena,
        bytes,
        ..lease(20, 0)
    };
    let taken = [
        Alloc(wish(Some(0), 10 * PAGE)),
        Alloc(wish(Some(1), 8 * PAGE)),
    ];
    live(&[&taken[..], &[Alloc(wish(None, 12 * PAGE))]].concat());
}

/// A client that freed a lease again during the scrub got the answer that the lease had expired.
#[test]
fn freeing_twice_is_no_error_while_scrubbing() {
    live(&[
        Alloc(lease(20, 0)),
        DONE,
        Free(Holder, 0),
        DONE,
        Free(Holder, 0),
    ]);
}

/// A request for a fenced lease whose bind was still outstanding got the answer busy.
#[test]
fn a_fence_is_told_although_a_bind_is_on_its_way() {
    let fenced = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Failed)];
    live(&[&fenced[..], &[Renew(Holder, 0, 0), Told(0, Cancelled)]].concat());
}

/// No defect: a renewal to a shorter term also ends the overlap of two keys.
#[test]
fn an_overlap_never_reaches_past_the_term() {
    let rotate = Rotate(Holder, 0, 60_000);
    let late = Pass(Step::Millis(17_000));
    let renew = Renew(Holder, 0, 1);
    live(&[Alloc(lease(20, 0)), DONE, late, rotate, DONE, renew]);
}

/// A request for more than the whole pages of the arena, but not more than its bytes, was refused as transient.
#[test]
fn what_only_a_tail_could_hold_never_fits() {
    let wish = Wish {
        bytes: 16 * PAGE + 50,
        ..lease(20, 0)
    };
    live(&[Alloc(wish)]);
}

/// The stall timer of a release ran while a bind was outstanding, and fenced the lease although no release was ordered.
#[test]
fn a_release_that_was_not_ordered_does_not_move() {
    let cut = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Fine)];
    live(&[&cut[..], &[Moves(0), Pass(Step::Millis(20_000))]].concat());
}

/// A renewal without a new key was refused because other leases of the tenant were being bound.
#[test]
fn a_renewal_that_rotates_nothing_takes_no_turn() {
    let wish = Wish {
        transport: Transport::Udp,
        peer: Peer::None,
        ..rotating(1, 0)
    };
    let late = Pass(Step::Renewable(0, false));
    let busy = [Alloc(wish), DONE, Alloc(lease(20, 0)), late];
    let limits = Limits {
        tenant_binds: 1,
        ..Limits::PLENTY
    };
    live_in(
        World::new(limits),
        &[&busy[..], &[Renew(Holder, 0, 0)]].concat(),
    );
}

/// No defect: a client that waits for a rotation gets the answer that it takes long, and the lease goes on.
#[test]
fn a_rotation_that_takes_long_does_not_cost_the_lease() {
    let rotate = Rotate(Holder, 0, 0);
    let long = Pass(Step::Millis(30_000));
    live(&[Alloc(lease(60, 0)), DONE, rotate, long, DONE, DONE]);
}

/// No defect: a late bind is accepted, and the next bind has a new time limit of the same length.
#[test]
fn patience_begins_anew_with_every_bind() {
    let bind = Bind(Holder, 0, Peer::Port(1));
    let long = Pass(Step::Millis(30_000));
    let once = [bind, long, DONE];
    live(&[&[Alloc(lease(600, 0)), DONE], &once[..], &once].concat());
}

/// No defect: an old key that cannot be retired ends the lease, also after the bind's time limit.
#[test]
fn an_old_key_that_does_not_die_ends_the_lease_of_a_late_rotation() {
    let rotate = Rotate(Holder, 0, 0);
    let long = Pass(Step::Millis(30_000));
    live(&[
        Alloc(lease(60, 0)),
        DONE,
        rotate,
        long,
        DONE,
        DUE,
        Told(1, Fine),
    ]);
}

/// No defect: a release waits for its thread without a limit, and must progress from then on.
#[test]
fn a_release_stalls_only_after_it_has_moved() {
    let cut = [Alloc(lease(20, 0)), DONE, Free(Holder, 0), DONE];
    let waits = [Pass(Step::Millis(100_000)), Told(0, Moving), DUE, DONE];
    live(&[&cut[..], &waits].concat());
}

/// No defect: a fence is not cleared while a bind is outstanding.
#[test]
fn a_remediation_waits_for_what_is_on_its_way() {
    let fenced = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Failed)];
    let early = ClearFence(Operator, 0);
    let late = [Told(0, Fine), ClearFence(Operator, 0)];
    live(&[&fenced[..], &[early], &late].concat());
}

/// No defect: a stranded binding is cut too, and the proof of that cut clears no fence.
#[test]
fn what_strands_is_cut_and_stays_fenced() {
    live(&[
        Alloc(lease(20, 0)),
        DONE,
        Bind(Holder, 0, Peer::Port(1)),
        Told(0, Stranded),
        DONE,
    ]);
}

/// No defect: a peer that names no port changes nothing, also in the grace time.
#[test]
fn a_binding_to_nobody_changes_nothing() {
    let bind = Bind(Holder, 0, Peer::Nobody(2));
    let renew = Renew(Holder, 0, 0);
    live(&[Alloc(lease(1, 9)), DONE, bind, DUE, DONE, bind, renew]);
}

/// A queue pair that joined after a bind that failed made the node tell the generation of that bind.
#[test]
fn what_is_joined_keeps_its_generation() {
    live(&[
        Alloc(lease(20, 0)),
        DONE,
        Bind(Holder, 0, Peer::Port(1)),
        Told(0, Failed),
        Join(Holder, 0, Peer::Port(1)),
        DONE,
    ]);
}

/// No defect: a queue pair that has joined is told, and can leave, although the deadline was not acknowledged.
#[test]
fn who_joined_is_there_although_its_deadline_was_not_acknowledged() {
    let join = Join(Holder, 0, Peer::Port(1));
    let leave = Leave(Holder, 0, 19);
    live(&[
        Alloc(lease(60, 0)),
        DONE,
        Paths(false),
        join,
        DONE,
        DUE,
        leave,
        DONE,
    ]);
}
