//! The calls, with a real etcd.

use std::{mem, process::Command, sync::Arc};

use fabricbios_fabric::FabricId;
use fabricbios_wire::NodeId;
use tonic::Code;

use super::{
    Calls, Mailbox, Store, Told,
    client::{Client, Failure},
    identity,
    members::Change,
    record::Keys,
};
use crate::EmbeddedEtcd;

async fn connected() -> (EmbeddedEtcd, Client, Keys) {
    let etcd = EmbeddedEtcd::start(&[]).unwrap();
    let endpoints = identity::endpoints(&[etcd.url()], &etcd.identity()).unwrap();
    let client = Client::connect(&endpoints[0], &Calls::default())
        .await
        .unwrap();
    (etcd, client, Keys::of(FabricId([7; 16])))
}

fn key(keys: &Keys, number: u16) -> Vec<u8> {
    let mut id = [0; 32];
    id[..2].copy_from_slice(&number.to_be_bytes());
    keys.node(NodeId(id))
}

#[test]
fn the_mailbox_has_one_change_for_each_node_with_what_it_told_last() {
    let mailbox = Arc::new(Mailbox::default());
    let store = Store {
        mailbox: Arc::clone(&mailbox),
        forgets: tokio::sync::mpsc::channel(1).0,
    };
    let told = Told {
        endpoint: "192.0.2.1:5701".into(),
        labels: Vec::new(),
    };
    let taken = || mem::take(&mut *mailbox.lock());
    for at_unix_ms in 0..1000 {
        store.reports(NodeId([1; 32]), told.clone(), at_unix_ms);
        store.gone(NodeId([1; 32]), at_unix_ms + 1);
    }
    let left = Change {
        told: Some(told.clone()),
        reports: false,
        at_unix_ms: 1000,
    };
    assert_eq!(taken().into_values().collect::<Vec<_>>(), [left]);
    store.gone(NodeId([1; 32]), 5);
    store.reports(NodeId([1; 32]), told.clone(), 6);
    let back = Change {
        told: Some(told),
        reports: true,
        at_unix_ms: 6,
    };
    assert_eq!(taken().into_values().collect::<Vec<_>>(), [back]);
}

#[tokio::test]
async fn an_etcd_of_another_ca_and_one_without_tls_are_not_taken() {
    let [etcd, other] = [
        EmbeddedEtcd::start(&[]).unwrap(),
        EmbeddedEtcd::start(&[]).unwrap(),
    ];
    let endpoints = identity::endpoints(&[other.url()], &etcd.identity()).unwrap();
    let refused = Client::connect(&endpoints[0], &Calls::default())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let plain = etcd.url().replace("https", "http");
    let refused = identity::endpoints(&[plain], &etcd.identity()).unwrap_err();
    assert!(refused.to_string().contains("not https://"), "{refused}");
}

#[tokio::test]
async fn all_records_are_read_in_pages_and_those_too_large_for_a_message_in_smaller_ones() {
    let (_etcd, client, keys) = connected().await;
    for number in 0..5 {
        let value = vec![b'x'; 1_200_000];
        let put = client.put_if(key(&keys, number), 0, value).await.unwrap();
        assert!(put.is_ok());
    }
    for number in 5..600 {
        let put = client.put_if(key(&keys, number), 0, b"{}".to_vec());
        put.await.unwrap().unwrap();
    }
    // Of another fabric.
    let other = Keys::of(FabricId([8; 16]));
    client
        .put_if(key(&other, 1), 0, Vec::new())
        .await
        .unwrap()
        .unwrap();
    let all = client.all(&keys).await.unwrap();
    let read: Vec<_> = all.records.iter().map(|it| it.key.clone()).collect();
    let wanted: Vec<_> = (0..600).map(|number| key(&keys, number)).collect();
    assert_eq!(read, wanted);
    assert!(all.revision > 600);
}

#[tokio::test]
async fn a_write_does_not_replace_what_has_changed_since() {
    let (_etcd, client, keys) = connected().await;
    let key = key(&keys, 1);
    let first = client
        .put_if(key.clone(), 0, b"a".to_vec())
        .await
        .unwrap()
        .unwrap();
    let second = client
        .put_if(key.clone(), first, b"b".to_vec())
        .await
        .unwrap()
        .unwrap();
    assert!(second > first);
    for stale in [0, first] {
        let found = client
            .put_if(key.clone(), stale, b"c".to_vec())
            .await
            .unwrap();
        let found = found.unwrap_err().unwrap();
        assert_eq!((&found.value[..], found.mod_revision), (&b"b"[..], second));
    }
}

#[tokio::test]
async fn a_watch_tells_what_has_changed_since_a_revision_and_that_it_was_compacted() {
    let (etcd, client, keys) = connected().await;
    let first = client
        .put_if(key(&keys, 1), 0, b"a".to_vec())
        .await
        .unwrap()
        .unwrap();
    let second = client
        .put_if(key(&keys, 2), 0, b"b".to_vec())
        .await
        .unwrap()
        .unwrap();
    let mut watch = client.watch(&keys, first).await.unwrap();
    let mut told = Vec::new();
    while told.len() < 2 {
        let events = watch.message().await.unwrap().unwrap().events;
        told.extend(events.into_iter().map(|it| it.kv.unwrap().mod_revision));
    }
    assert_eq!(told, [first, second]);
    let identity = etcd.identity();
    let compacted = Command::new("etcdctl")
        .arg(format!("--endpoints={}", etcd.url()))
        .arg("--cert")
        .arg(&identity)
        .arg("--key")
        .arg(&identity)
        .arg("--cacert")
        .arg(etcd.ca())
        .args(["compact", &second.to_string()])
        .env("ETCDCTL_API", "3")
        .status()
        .expect("etcdctl: on Debian `apt install etcd-client` brings it");
    assert!(compacted.success());
    let mut watch = client.watch(&keys, first).await.unwrap();
    let told = loop {
        let told = watch.message().await.unwrap().unwrap();
        if told.canceled {
            break told;
        }
    };
    assert_eq!(told.compact_revision, second);
}

#[tokio::test]
async fn a_lease_that_was_given_back_is_not_renewed() {
    let (_etcd, client, keys) = connected().await;
    let lease = client.put_leased(key(&keys, 1), Vec::new()).await.unwrap();
    assert!(client.keep_alive(lease).await.unwrap());
    client.revoke(lease).await.unwrap();
    assert!(!client.keep_alive(lease).await.unwrap());
    assert_eq!(client.all(&keys).await.unwrap().records, []);
    let again = client.revoke(lease).await.unwrap_err();
    let Failure::Refused { code, .. } = again else {
        panic!("{again}");
    };
    assert_eq!(code, Code::NotFound);
}
