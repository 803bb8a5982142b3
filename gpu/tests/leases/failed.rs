//! Devices that fail, and their resets.

use super::*;

#[test]
fn a_device_that_cannot_be_wiped_is_reset_by_the_next_release() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    let _leaves = world.filled(lease_id(1));
    world.cut(&lease);
    let knobs = &world.machine.lab.directory;
    let half = (MEMORY / 2).to_string();
    knobs.set(Knob::ShortScrub, &half).unwrap();
    let knob = knobs.path().join("short-scrub");
    let reset = format!("rm {}", knob.display());
    world.machine.lab.script("nvidia-smi", &reset);
    let why = world.release(&lease).unwrap_err();
    assert!(why.detail.contains("could be wiped"), "{why}");
    assert!(knob.exists());
    world.release(&lease).unwrap();
    assert!(!world.has_pattern());
}

/// Only the operator's remediation resets a device that failed by itself, and never while it has a lease.
#[test]
fn a_device_that_failed_is_reset_when_it_has_no_lease() {
    let world = World::new();
    let resource = whole(1).binding_id.resource_id;
    let (tell, told) = mpsc::channel();
    world
        .store
        .tell_condition(Box::new(move |it| tell.send(it).unwrap()));
    // Without its library the device can have no lease; the device recovers when the library answers again.
    for (health, expected) in [
        (
            Health::Silent("NVML".into()),
            Condition::Unavailable("NVML".into()),
        ),
        (Health::Good, Condition::Good),
    ] {
        world.store.set_health(health);
        assert_eq!(told.recv().unwrap(), expected);
    }
    let lease = whole(1);
    world.bound(&lease);
    world.store.set_health(Health::Failed("XID 79".into()));
    let failed = Condition::Failed("XID 79".into());
    assert_eq!(told.recv().unwrap(), failed);
    // A new watching process does not know the error.
    world.store.set_health(Health::Good);
    assert!(told.try_recv().is_err());
    let reset = world.machine.lab.directory.path().join("was-reset");
    let script = format!("touch {}", reset.display());
    world.machine.lab.script("nvidia-smi", &script);
    let why = world.provider.reset(resource, &[]).unwrap_err();
    assert!(why.detail.contains("revoke"), "{why}");
    assert!(!reset.exists());
    world.end(&lease);
    // A grant also reads the failed health.
    let refused = world.provider.bind(&whole(2)).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("XID 79")));
    world.provider.reset(resource, &[]).unwrap();
    assert!(reset.exists());
    assert_eq!(told.recv().unwrap(), Condition::Good);
    world.bound(&whole(3));
}

/// The libraries of the next daemon do not know the errors that the last daemon received.
#[test]
fn a_failure_outlives_the_daemon_until_the_device_is_reset() {
    let restarted = |world: World| World(world.0.restarted());
    let condition = |world: &World| {
        let (tell, told) = mpsc::channel();
        let tell = move |it| tell.send(it).unwrap_or_default();
        world.store.tell_condition(Box::new(tell));
        told.try_recv().unwrap_or(Condition::Good)
    };
    let world = World::new();
    world.store.set_health(Health::Failed("XID 79".into()));
    let world = restarted(restarted(world));
    // The libraries of the new daemon report no fault.
    assert_eq!(world.machine.device.health, Health::Good);
    let Condition::Failed(why) = condition(&world) else {
        panic!("the failure is forgotten")
    };
    assert!(why.starts_with("XID 79 (before this start"), "{why}");
    let refused = world.provider.bind(&whole(1)).unwrap_err();
    assert!(matches!(refused, BindError::Failed(why) if why.detail.contains("XID 79")));
    world.machine.lab.script("nvidia-smi", "exit 1");
    let resource = whole(1).binding_id.resource_id;
    world.provider.reset(resource, &[]).unwrap_err();
    let world = restarted(world);
    assert!(
        matches!(condition(&world), Condition::Failed(_)),
        "no reset"
    );
    world.machine.lab.script("nvidia-smi", "true");
    world.provider.reset(resource, &[]).unwrap();
    assert_eq!(condition(&world), Condition::Good);
    let world = restarted(world);
    assert_eq!(condition(&world), Condition::Good);
    world.bound(&whole(2));
}
