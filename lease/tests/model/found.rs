//! Lives in which the table once did something else than is documented, each with what it was; and some
//! that random lives rarely reach, in which nothing was wrong.

use super::*;

use Action::{
    Again, Alloc, Bind, ClearFence, Drain, Free, Moves, Pass, Renew, Report as Told, Revoke, Rotate,
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

/// That a lease had expired was not written down when its grace time was over: after a restart it
/// would have been told as revoked.
#[test]
fn the_end_of_grace_is_written_down() {
    live(&[Alloc(lease(1, 1)), DONE, DUE, DONE, DUE]);
}

/// The same when a drain ended the grace time.
#[test]
fn a_drain_in_grace_is_written_down() {
    live(&[Alloc(lease(1, 1)), DONE, DUE, DONE, Drain]);
}

/// Who gave a lease back while its deadline was cutting it was told of a grace time, in which the
/// bytes stayed taken.
#[test]
fn a_lease_freed_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Free(Holder, 0), DONE]);
}

/// The operator was told that it is torn down, and the holder could renew it in its grace time.
#[test]
fn a_lease_revoked_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Revoke(Operator, 0), DONE]);
}

/// A drain would have waited for the grace time.
#[test]
fn a_lease_drained_during_the_cut_of_its_deadline_is_not_kept() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, Drain, DONE]);
}

/// A key from before the cut stood in the way of renewals although nothing of it was left.
#[test]
fn an_old_key_does_not_outlive_the_cut() {
    let rotate = Rotate(Holder, 0, 8_000);
    let renew = Renew(Holder, 0, 0);
    live(&[Alloc(rotating(1, 9)), DONE, rotate, DONE, DUE, DONE, renew]);
}

/// While the new binding was made, the holder was told the coordinates of the dead one.
#[test]
fn a_renewal_in_grace_tells_no_dead_key() {
    live(&[Alloc(lease(1, 9)), DONE, DUE, DONE, Renew(Holder, 0, 0)]);
}

/// The release that had been waiting for it was ordered, and its success cleared the fence although
/// something was left behind.
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

/// A release was ordered for what had just been reported as stranded.
#[test]
fn a_bind_that_strands_after_the_cut_is_not_released() {
    let cut = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Fine)];
    live(&[&cut[..], &[Told(0, Stranded)]].concat());
}

/// A remediation that had begun before cleared a fence that nothing had verified.
#[test]
fn a_remediation_clears_no_fence_that_is_younger() {
    let two = [Alloc(lease(20, 0)), DONE, Alloc(lease(20, 0)), DONE];
    let first = [Free(Holder, 0), Told(0, Failed), ClearFence(Operator, 0)];
    let second = [Free(Holder, 1), Told(1, Failed), DONE];
    live(&[&two[..], &first, &second].concat());
}

/// The report of a bind, coming again, was taken for that of the rotation under way.
#[test]
fn a_bind_reported_again_is_not_a_rotation() {
    let rotate = Rotate(Holder, 0, 8_000);
    live(&[Alloc(lease(20, 0)), DONE, rotate, Again(0), Free(Holder, 0)]);
}

/// The report of a rotation, coming again while the old key was being ended, ended it twice.
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

/// The tighter of two arenas that are full now was too small for ever, and the refusal said that it is
/// permanent.
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

/// Who asked to free once more while the bytes were scrubbed was told that the lease had expired.
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

/// A fenced lease whose bind had not come back was told as busy.
#[test]
fn a_fence_is_told_although_a_bind_is_on_its_way() {
    let fenced = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Failed)];
    live(&[&fenced[..], &[Renew(Holder, 0, 0), Told(0, Cancelled)]].concat());
}

/// Nothing was wrong: a renewal to a shorter term ends the overlap of two keys with it.
#[test]
fn an_overlap_never_reaches_past_the_term() {
    let rotate = Rotate(Holder, 0, 60_000);
    let late = Pass(Step::Millis(17_000));
    let renew = Renew(Holder, 0, 1);
    live(&[Alloc(lease(20, 0)), DONE, late, rotate, DONE, renew]);
}

/// More than whole pages can hold, though not more than the arena has bytes: the refusal said that it
/// is for now.
#[test]
fn what_only_a_tail_could_hold_never_fits() {
    let wish = Wish {
        bytes: 16 * PAGE + 50,
        ..lease(20, 0)
    };
    live(&[Alloc(wish)]);
}

/// Its stall timer ran while a bind was on its way, and fenced for a release that had not been ordered.
#[test]
fn a_release_that_was_not_ordered_does_not_move() {
    let cut = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Fine)];
    live(&[&cut[..], &[Moves(0), Pass(Step::Millis(20_000))]].concat());
}

/// It needs no new key, and was refused because others of the tenant were being bound.
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

/// Nothing was wrong: who waits for a rotation is told that it takes long, and the lease goes on.
#[test]
fn a_rotation_that_takes_long_does_not_cost_the_lease() {
    let rotate = Rotate(Holder, 0, 0);
    let long = Pass(Step::Millis(30_000));
    live(&[Alloc(lease(60, 0)), DONE, rotate, long, DONE, DONE]);
}

/// Nothing was wrong: a bind that nobody waits for any more is taken up, and the next has as long.
#[test]
fn patience_begins_anew_with_every_bind() {
    let bind = Bind(Holder, 0, Peer::Port(1));
    let long = Pass(Step::Millis(30_000));
    let once = [bind, long, DONE];
    live(&[&[Alloc(lease(600, 0)), DONE], &once[..], &once].concat());
}

/// Nothing was wrong: an old key that does not die ends the lease, patience or not.
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

/// Nothing was wrong: a release waits for its thread as long as it takes, and moves from then on.
#[test]
fn a_release_stalls_only_after_it_has_moved() {
    let cut = [Alloc(lease(20, 0)), DONE, Free(Holder, 0), DONE];
    let waits = [Pass(Step::Millis(100_000)), Told(0, Moving), DUE, DONE];
    live(&[&cut[..], &waits].concat());
}

/// Nothing was wrong: a fence is not cleared under a bind that has not come back.
#[test]
fn a_remediation_waits_for_what_is_on_its_way() {
    let fenced = [Alloc(lease(20, 0)), Free(Holder, 0), Told(1, Failed)];
    let early = ClearFence(Operator, 0);
    let late = [Told(0, Fine), ClearFence(Operator, 0)];
    live(&[&fenced[..], &[early], &late].concat());
}

/// Nothing was wrong: what was stranded is cut as well, and the proof of that clears no fence.
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

/// Nothing was wrong: who names no port changes nothing, also in the grace time.
#[test]
fn a_binding_to_nobody_changes_nothing() {
    let bind = Bind(Holder, 0, Peer::Nobody(2));
    let renew = Renew(Holder, 0, 0);
    live(&[Alloc(lease(1, 9)), DONE, bind, DUE, DONE, bind, renew]);
}
