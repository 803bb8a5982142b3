//! The macro that makes each behaviour of a suite a test.

/// Makes the tests of these suites for a [`Fixture`](crate::testing::Fixture):
///
/// - `life`: a life from bind to release, and orders that come too early or too late.
/// - `adoption`: leases that go on in the next process.
/// - `faults`: calls that the kernel refuses, cuts in the middle of a bind, deaths; needs
///   [`Faulty`](crate::testing::Faulty).
/// - `failures`: only those of `faults` with calls that the kernel refuses.
/// - `by_name`: leases that the watchdog ends; needs [`EndedByName`](crate::testing::EndedByName).
/// - `entry`: leases into which local users put something; needs [`Entered`](crate::testing::Entered).
///
/// Each test has the attributes in `[]` in front of the fixture.
#[macro_export]
macro_rules! suites {
    ([$($attributes:tt)*] $fixture:ty: $suite:ident $(, $more:ident)*) => {
        $crate::suites!(@ $suite, [$($attributes)*], $fixture);
        $crate::suites!([$($attributes)*] $fixture: $($more),*);
    };
    ([$($attributes:tt)*] $fixture:ty:) => {};
    (@ life, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ life, $attributes, $fixture:
            a_lease_opens_and_ends_and_leaves_nothing,
            a_cut_before_the_bind_lets_nothing_open,
            a_newer_binding_goes_on_behind_orders_to_the_older_one,
            late_calls_do_not_touch_the_next_lease,
        );
    };
    (@ adoption, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ adoption, $attributes, $fixture:
            the_next_process_adopts_a_lease_as_it_is_and_makes_none_anew,
            the_next_process_ends_a_lease_by_its_name_alone,
        );
    };
    (@ failures, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ failures, $attributes, $fixture:
            a_bind_that_fails_at_any_call_leaves_nothing,
            an_end_that_fails_at_any_call_succeeds_later_and_opens_nothing_meanwhile,
        );
    };
    (@ faults, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ faults, $attributes, $fixture:
            a_bind_that_fails_at_any_call_leaves_nothing,
            an_end_that_fails_at_any_call_succeeds_later_and_opens_nothing_meanwhile,
            a_cut_at_any_call_of_a_bind_waits_for_nothing_and_nothing_opens,
            a_death_behind_any_call_leaves_nothing_that_the_next_process_does_not_end,
        );
    };
    (@ by_name, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ by_name, $attributes, $fixture:
            the_watchdog_ends_a_lease_by_its_name_and_no_other,
            no_lease_begins_without_a_watchdog_and_those_in_use_go_on,
        );
    };
    (@ entry, $attributes:tt, $fixture:ty) => {
        $crate::suites!(@ entry, $attributes, $fixture:
            only_its_tenant_enters_a_lease_and_only_until_deadline_and_cut,
        );
    };
    (@ $suite:ident, $attributes:tt, $fixture:ty: $($name:ident,)+) => {
        $($crate::suites!(@ test $attributes $suite, $name, $fixture);)+
    };
    (@ test [$($attributes:tt)*] $suite:ident, $name:ident, $fixture:ty) => {
        #[test]
        $($attributes)*
        fn $name() {
            $crate::testing::suite::$suite::$name::<$fixture>();
        }
    };
    ($fixture:ty: $($suite:ident),+) => {
        $crate::suites!([] $fixture: $($suite),+);
    };
}
