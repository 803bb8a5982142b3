//! The same random lives, chosen by a fuzzer that sees which code of the table each life reaches: the target `table` of
//! testbed/fuzz/. Four bytes choose one action. So a changed byte changes one action, and the fuzzer can cut and join
//! lives.

use libfuzzer_sys::fuzz_target;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

use crate::{World, actions, live_in};

fuzz_target!(|bytes: &[u8]| {
    let (chunks, _) = bytes.as_chunks::<4>();
    let Some((first, lives)) = chunks.split_first() else {
        return;
    };
    let limits = chosen(&actions::limits(), *first);
    let action = actions::action();
    let lives: Vec<_> = lives.iter().map(|chunk| chosen(&action, *chunk)).collect();
    live_in(World::new(limits), &lives);
});

/// The actions for these bytes.
fn chosen<S: Strategy>(strategy: &S, bytes: [u8; 4]) -> S::Value {
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&bytes);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let tree = strategy.new_tree(&mut runner);
    tree.unwrap().current()
}
