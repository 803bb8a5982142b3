//! The same lives, chosen by a fuzzer that sees which paths of the table they reach: the target `table`
//! of fuzz/.

use libfuzzer_sys::fuzz_target;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{World, actions, live_in};

fuzz_target!(|bytes: &[u8]| {
    let lives = (
        actions::limits(),
        prop::collection::vec(actions::action(), 1..120),
    );
    // The fuzzer's bytes stand where random numbers would. What comes after them must not be zeros for
    // ever: choosing a number of a range goes on until it gets one.
    let more = (0..16_384_u32).map(|at| at.wrapping_mul(0x9E37_79B9).to_be_bytes()[0]);
    let numbers: Vec<u8> = bytes.iter().copied().chain(more).collect();
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, &numbers);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let Ok(life) = lives.new_tree(&mut runner) else {
        return;
    };
    let (limits, actions) = life.current();
    live_in(World::new(limits), &actions);
});
