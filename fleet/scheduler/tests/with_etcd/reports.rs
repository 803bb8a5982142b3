//! Whose reports a scheduler takes, and what it says to a client that follows no redirect.

use fabricbios_client::Error;
use fabricbios_wire::{
    LeaseAllocRequest, LeaseError, Refusal, RefusalClass, Reply, Request, ResourceType,
};

use crate::world::{World, placed, until_async, until_placed};

fn decided(refusal: &Refusal) -> (LeaseError, RefusalClass) {
    (refusal.error, refusal.class)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_follows_no_redirect_gets_unavailable_and_learns_what_to_do() {
    let world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let _connection = node.report_to(&scheduler).await;
    let client = world.client(&scheduler).await;
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    assert!(!wanted.follows_redirect);
    let answer = client.call_async(Request::LeaseAlloc(wanted)).await;
    let Err(Error::Refused(refusal)) = answer else {
        panic!("{answer:?}")
    };
    let expected = (LeaseError::Unavailable, RefusalClass::Transient);
    assert_eq!(decided(&refusal), expected);
    for part in ["grants nothing", "newer client", "node list"] {
        assert!(refusal.message.contains(part), "{part} in {refusal}");
    }
    assert_eq!(placed(&client).await.unwrap(), [node.id()], "with the TLV");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reports_for_another_one_is_refused_and_neither_is_there() {
    let world = World::new();
    let scheduler = world.scheduler();
    let (own, other) = (world.node("rack=r7"), world.node("rack=r8"));
    let client = world.client(&scheduler).await;
    let of_own = own.connect(&scheduler).await;
    let refusal = other.begin(&of_own).await.unwrap_err();
    let expected = (LeaseError::NotPermitted, RefusalClass::Permanent);
    assert_eq!(decided(&refusal), expected);
    for id in [own.id(), other.id()] {
        assert!(refusal.message.contains(&id.to_string()), "{refusal}");
    }
    assert_eq!(client.members_async().await.unwrap().reporting, []);
    // Nor is it refused for what was said of it.
    assert_eq!(own.begin(&of_own).await, Ok(Reply::Reported));
    assert_eq!(placed(&client).await.unwrap(), [own.id()]);
    scheduler.stop().await;
}

/// As after a state directory was copied to another machine.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_nodes_with_one_key_the_later_one_counts_until_its_connection_ends() {
    let world = World::new();
    let scheduler = world.scheduler();
    let node = world.node("rack=r7");
    let client = world.client(&scheduler).await;
    let first = node.report_to(&scheduler).await;
    let later = node.report_to(&scheduler).await;
    for _ in 0..2 {
        let refusal = node.begin(&first).await.unwrap_err();
        let expected = (LeaseError::ResourceBusy, RefusalClass::Transient);
        assert_eq!(decided(&refusal), expected);
        for part in ["later connection", "copy of its state directory"] {
            assert!(refusal.message.contains(part), "{part} in {refusal}");
        }
    }
    node.say_all(&later).await;
    assert_eq!(placed(&client).await.unwrap(), [node.id()], "and once");
    drop(later);
    let has_gone = async || placed(&client).await.is_err().then_some(());
    until_async("the later one has gone", has_gone).await;
    assert_eq!(node.begin(&first).await, Ok(Reply::Reported));
    node.say_all(&first).await;
    assert_eq!(placed(&client).await.unwrap(), [node.id()]);
    // Its end is heard too.
    drop(first);
    until_async("the first one has gone", has_gone).await;
    let again = node.report_to(&scheduler).await;
    until_placed(&client, &[node.id()]).await;
    drop(again);
    scheduler.stop().await;
}
