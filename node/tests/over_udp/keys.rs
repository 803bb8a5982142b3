//! Keys of leases over UDP: which key works, and for how long.

use fabricbios_wire::*;

use crate::world::*;

#[tokio::test]
async fn a_rotation_ends_the_old_key_at_once_or_after_its_overlap() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let rotate = |lease_id, overlap_ms| Request::LeaseRotate {
        lease_id,
        overlap_ms,
    };
    let old = world.alloc(60).await;
    write(&old, 0, b"stays").await.expect("written");
    let new = world.lease(rotate(old.lease_id, 0)).await;
    assert_ne!(new.binding.dp_key, old.binding.dp_key);
    assert_eq!(first(&new).await.expect("read"), *b"stays");
    no_answer_to(&old).await;
    let newer = world.lease(rotate(old.lease_id, 60_000)).await;
    for info in [&new, &newer] {
        assert_eq!(first(info).await.expect("both work"), *b"stays");
    }
    world.stop().await;
}

#[tokio::test]
async fn nobody_gets_the_key_of_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let (blue, red) = (world.tenant("blue").await, world.tenant("red").await);
    let info = blue.alloc_async(request(60)).await.expect("granted");
    assert!(has_key(&info));
    let asked = red.lease_async(Request::LeaseQuery(info.lease_id)).await;
    assert_eq!(refusal(asked).error, LeaseError::NotFound);
    let seen = world.query(info.lease_id).await;
    assert!(seen.binding.is_plain(), "an operator sees no key");
    let Ok(Reply::Leases(page)) = blue
        .call_async(Request::LeaseList {
            after: LeaseId(0),
            ended: false,
        })
        .await
    else {
        panic!("no list")
    };
    assert!(page.leases.iter().all(|lease| !has_key(lease)));
    let other = red.alloc_async(request(60)).await.expect("granted");
    write(&info, 0, b"blue!").await.expect("written");
    assert_eq!(first(&other).await.expect("read"), [0; 5]);
    let forged = LeaseInfo {
        lease_id: info.lease_id,
        ..other
    };
    no_answer_to(&forged).await;
    world.stop().await;
}
