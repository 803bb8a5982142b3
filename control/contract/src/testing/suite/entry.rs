//! Local users.

use fabricbios_lease::BootTime;
use fabricbios_wire::LeaseId;

use crate::{
    LocalAccess as _, LocalRefusal,
    testing::{Entered, FOR_EVER, World},
};

pub fn only_its_tenant_enters_a_lease_and_only_until_deadline_and_cut<F: Entered>() {
    let world = World::<F>::new();
    let order = F::order(1);
    let id = order.binding_id;
    let refusal = |lease: LeaseId, tenant: &str| {
        let (caller, given) = world.machine.caller(tenant);
        let entered = world.path.enter(lease, &caller, given);
        entered.expect_err("it entered")
    };
    let not_active = |because: &str| {
        let refused = refusal(id.lease_id, &order.tenant);
        let LocalRefusal::NotActive(why) = refused else {
            panic!("{refused:?}, and not {because}");
        };
        assert!(why.contains(because), "{why}");
    };
    let unknown = refusal(id.lease_id, &order.tenant);
    assert_eq!(unknown, LocalRefusal::NotFound);
    world.provider.bind(&order).unwrap();
    not_active("deadline");
    world.provider.extend(id, BootTime(1)).unwrap();
    not_active("deadline");
    world.provider.extend(id, FOR_EVER).unwrap();
    let stranger = refusal(id.lease_id, "a stranger");
    assert!(
        matches!(&stranger, LocalRefusal::NotYours { tenant, .. } if **tenant == *order.tenant),
        "{stranger:?}"
    );
    world.cut(&order).unwrap();
    not_active("cut");
    world.release(&order).unwrap();
    not_active("over");
}
