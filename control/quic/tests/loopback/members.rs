//! Members of a fabric as clients, and a node that joins a fabric while it serves.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

use std::time::SystemTime;

use fabricbios_fabric::{Ca, Fabric, FabricDirectory, Member, Principal};
use fabricbios_wire::{
    Answer, IssueRequest, LeaseAllocRequest, LeaseError, LeaseId, RefusalClass, Reply, Request,
    ResourceType, Role,
};

use crate::{
    common::{Client, Credentials, Handler, World, credentials, issue},
    free,
};

pub(crate) fn alloc() -> Request {
    Request::LeaseAlloc(LeaseAllocRequest::new(ResourceType::Mem, 4096, 60))
}

pub(crate) fn tenant_of(ca: &Ca) -> Credentials {
    issue(ca, "blue", Role::Tenant, 0, SystemTime::now())
}

pub(crate) async fn dial(
    world: &World,
    credentials: &Credentials,
    ca: &Ca,
) -> Result<Client, String> {
    let ca = ca.certificate();
    Client::dial(world.addr(), Some(credentials), ca, crate::common::ALPN).await
}

/// The node joins, as `node-request`, `fabric sign` and `node-accept` do it.
pub(crate) fn join(world: &World, fabric: &FabricDirectory) {
    let request = Fabric::request(world.state_dir()).unwrap();
    let member = Member::Node(vec!["rack=r7".parse().unwrap()]);
    let now = SystemTime::now();
    let signed = fabric.sign(&request, &member, None, now).unwrap();
    let accepted = Fabric::accept(world.state_dir(), &signed.pem, now).unwrap();
    world.membership().replace(accepted.fabric);
}

#[track_caller]
pub(crate) fn refused(answer: Answer, word: &str) {
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.error, LeaseError::NotPermitted, "{refusal}");
    assert_eq!(refusal.class, RefusalClass::Policy, "{refusal}");
    assert!(refusal.message.contains(word), "{refusal}");
}

#[tokio::test]
async fn a_node_and_a_scheduler_may_ask_who_answers_and_nothing_of_a_tenant() {
    let world = World::start(Handler::Refuse).await;
    let root = tempfile::tempdir().unwrap();
    let fabric = FabricDirectory::init(root.path(), SystemTime::now()).unwrap();
    join(&world, &fabric);
    let scheduler = credentials(&fabric.scheduler_identity());
    for (who, word) in [
        (&world.node_as_client(), "a node"),
        (&scheduler, "a scheduler"),
    ] {
        let client = dial(&world, who, fabric.ca()).await.unwrap();
        assert_eq!(client.call(&Request::Ping(7)).await, Ok(Reply::Pong(7)));
        for request in [alloc(), free(), Request::FenceList] {
            refused(client.call(&request).await, word);
        }
        assert!(world.seen().is_empty());
    }
}

#[tokio::test]
async fn a_node_that_joins_goes_on_and_grants_former_identities_nothing_new() {
    let world = World::start(Handler::Refuse).await;
    let own = world.own_ca();
    let (old_blue, old_admin) = (tenant_of(&own), world.admin());
    let before = dial(&world, &old_blue, &own).await.unwrap();
    before.call(&alloc()).await.unwrap_err();
    assert_eq!(world.seen().len(), 1);
    let root = tempfile::tempdir().unwrap();
    let fabric = FabricDirectory::init(root.path(), SystemTime::now()).unwrap();
    join(&world, &fabric);
    // The connection of before is the same one, and a new one is served with the certificate that its client trusts.
    let after = dial(&world, &old_blue, &own).await.unwrap();
    let named = fabric.id().to_string();
    for client in [&before, &after] {
        refused(client.call(&alloc()).await, &named);
        client.call(&free()).await.unwrap_err();
    }
    let admin = dial(&world, &old_admin, &own).await.unwrap();
    let revoke = Request::LeaseRevoke(LeaseId(1));
    let issue = Request::IdentityIssue(IssueRequest {
        tenant: "blue".into(),
        role: Role::Operator,
        valid_secs: 0,
        csr_der: vec![0],
    });
    for request in [alloc(), revoke, issue] {
        refused(admin.call(&request).await, &named);
    }
    admin.call(&free()).await.unwrap_err();
    let new = dial(&world, &tenant_of(fabric.ca()), fabric.ca())
        .await
        .unwrap();
    new.call(&alloc()).await.unwrap_err();
    let principal = |tenant: String, role| Principal {
        tenant: tenant.into(),
        role,
    };
    let seen = world.seen().into_iter().map(|it| it.principal);
    let blue = principal("blue".into(), Role::Tenant);
    let expected = [
        blue.clone(),
        blue.clone(),
        blue,
        principal("admin".into(), Role::Tenant),
        principal(format!("blue@{named}"), Role::Tenant),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    let strangers = tempfile::tempdir().unwrap();
    let strangers = FabricDirectory::init(strangers.path(), SystemTime::now()).unwrap();
    for (who, ca) in [
        (&old_blue, strangers.ca()),
        (&tenant_of(strangers.ca()), fabric.ca()),
    ] {
        let client = dial(&world, who, ca).await;
        let outcome = match client {
            Ok(client) => {
                client
                    .raw(&fabricbios_wire::encode_request(1, 2, &free()))
                    .await
            }
            Err(error) => Err(error),
        };
        outcome.unwrap_err();
    }
}
