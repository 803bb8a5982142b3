use std::net::SocketAddr;

use fabricbios_control::{PeerConnection, RequestPeer};
use fabricbios_placement::Policy;
use fabricbios_wire::{Answer, LeaseAllocRequest, NodeId, ResourceType};
use tokio::sync::oneshot;

use super::*;
use crate::owner::Task;

/// A tenant asks for a lease. The receiver has what it is answered.
fn asks(queue: &Queue, tenant: &str) -> oneshot::Receiver<Answer> {
    let remote = SocketAddr::from(([192, 0, 2, 1], 4000));
    let (reply, answer) = oneshot::channel();
    queue.pass_on(PeerRequest {
        principal: Principal {
            tenant: tenant.into(),
            role: Role::Tenant,
        },
        peer: RequestPeer {
            key: NodeId([1; 32]),
            labels: [].into(),
            connection: PeerConnection::new(1, remote).0,
        },
        listen: remote,
        local_ip: None,
        request: Request::LeaseAlloc(LeaseAllocRequest {
            follows_redirect: true,
            ..LeaseAllocRequest::new(ResourceType::Mem, 1, 60)
        }),
        reply,
    });
    answer
}

fn words(answer: &mut oneshot::Receiver<Answer>) -> Option<String> {
    let answer = answer.try_recv().ok()?;
    Some(answer.unwrap_err().message)
}

#[tokio::test]
async fn a_tenant_with_hundreds_of_requests_holds_up_nobody_else() {
    let (queue, _of_nodes, mut turns) = Queue::new();
    let mut task = Task::new(NodeId([9; 32]), Policy::Spread, None);
    let mut loud: Vec<_> = (0..WAITING_OF_TENANT_MAX)
        .map(|_| asks(&queue, "loud"))
        .collect();
    let mut quiet = asks(&queue, "quiet");
    let last = asks(&queue, "last");
    let mut answered = 0;
    while last.is_empty() {
        let (request, _place) = turns.recv().await.unwrap();
        task.answer(request);
        answered += 1;
    }
    assert!(answered <= 3, "{answered} answers");
    let quiet = words(&mut quiet).unwrap();
    assert!(quiet.starts_with("no node reports"), "{quiet}");
    // Nobody is forgotten, and who comes later has a turn too.
    let mut later = asks(&queue, "quiet");
    drop(queue);
    while let Some((request, _place)) = turns.recv().await {
        task.answer(request);
        answered += 1;
    }
    assert_eq!(answered, WAITING_OF_TENANT_MAX + 3);
    assert!(words(&mut later).is_some() && loud.iter_mut().all(|it| words(it).is_some()));
}

#[tokio::test]
async fn who_has_nothing_waiting_has_a_place_however_many_wait_of_others() {
    let (queue, _of_nodes, mut turns) = Queue::new();
    let is_refused = |mut answer| words(&mut answer).is_some_and(|it| it.contains("too many"));
    let mut waiting = Vec::new();
    for tenant in 0..WAITING_MAX / WAITING_OF_TENANT_MAX {
        let name = format!("tenant {tenant}");
        waiting.extend((0..WAITING_OF_TENANT_MAX).map(|_| asks(&queue, &name)));
        assert!(is_refused(asks(&queue, &name)), "beyond its bound");
    }
    assert!(waiting.iter().all(oneshot::Receiver::is_empty));
    let late = asks(&queue, "late");
    assert!(late.is_empty());
    assert!(is_refused(asks(&queue, "late")), "all places are taken");
    // Two that are taken out give their places back.
    for _ in 0..2 {
        turns.recv().await.unwrap();
    }
    assert!(asks(&queue, "late").is_empty());
}
