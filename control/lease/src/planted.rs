//! Mistakes that tests plant, to see that a model notices them.

use core::fmt::Debug;

use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestError, TestRng, TestRunner},
};

/// Checks that each mistake is found by one of 4,096 cases. Every run of the tests uses the same cases.
pub(crate) fn all_are_found<M: Copy + Debug, S: Strategy>(
    mistakes: impl IntoIterator<Item = M>,
    steps: impl Fn() -> S,
    run: impl Fn(M, S::Value) -> Result<(), TestCaseError>,
) {
    for mistake in mistakes {
        let config = ProptestConfig {
            failure_persistence: None,
            cases: 4096,
            ..ProptestConfig::default()
        };
        let always_the_same = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, always_the_same);
        let found = runner.run(&steps(), |steps| run(mistake, steps));
        assert!(matches!(found, Err(TestError::Fail(..))), "{mistake:?}");
    }
}
