//! Identities: files, keys, and how the node names the caller.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_client::Identity;
use fabricbios_fabric::{FabricDirectory, Member};
use fabricbios_wire::{
    Endpoint, Epoch, LeaseError, NodeId, NodeIdentity, RefusalClass, Reply, Request, Role,
};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, rdma, refuse},
    fails, failure, granting, json_of, line_of, run, saying,
};

#[test]
fn identities_that_do_not_do() {
    let node = FakeNode::start(granting());
    let other = FakeNode::start(granting());
    let with = |identity: &str| {
        let mut command = command(&node, "--json fence list");
        failure(
            &command
                .env("FABRICBIOS_IDENTITY", identity)
                .output()
                .unwrap(),
        )
    };
    let code = |(status, object): (i32, Value)| {
        (
            status,
            object["reason"]["code"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(code(with("/no/such/file")), (2, "Identity".into()));
    let missing = with("/no/such/file").1["message"].to_string();
    assert!(missing.contains("admin.identity"), "{missing}");
    assert_eq!(code(with("")), (2, "Usage".into()));
    let (_, object) = failure(
        &command(&node, "--json ping")
            .env_remove("FABRICBIOS_IDENTITY")
            .output()
            .unwrap(),
    );
    assert!(
        object["message"]
            .as_str()
            .unwrap()
            .contains("admin.identity")
    );
    assert_eq!(
        code(with(node.expired_identity().to_str().unwrap())),
        (3, "IdentityRefused".into())
    );
    assert_eq!(
        code(with(other.admin().to_str().unwrap())),
        (1, "UntrustedNode".into())
    );
    assert!(node.asked().is_empty());
}

#[test]
fn an_issued_identity_is_private_works_and_overwrites_nothing() {
    let issuer = std::sync::Arc::new(std::sync::Mutex::new(
        None::<std::sync::Arc<fabricbios_fabric::Ca>>,
    ));
    let signing = std::sync::Arc::clone(&issuer);
    let node = FakeNode::start(move |request: &Request| match request {
        Request::IdentityIssue(request) => signing
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .issue(request, SystemTime::now()),
        Request::GetIdentity => Ok(Reply::Identity(NodeIdentity {
            node_id: NodeId([1; 32]),
            epoch: Epoch(1),
            endpoint: Endpoint {
                addr: rdma().gid,
                port: 5_701,
            },
            tenant: "blue".into(),
            role: Role::Tenant,
            version: "0.1.0".into(),
        })),
        other => panic!("{other:?}"),
    });
    *issuer.lock().unwrap() = Some(node.issuer());
    let out = node.dir().join("blue.identity");
    let issue = format!(
        "identity issue --tenant blue --days 3 --out {}",
        out.display()
    );
    let issued = json_of(&node, &issue);
    assert_eq!(
        (&issued["tenant"], &issued["role"]),
        (&json!("blue"), &json!("tenant"))
    );
    assert_eq!(
        fs::metadata(&out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let whole = fs::read(&out).unwrap();
    let Request::IdentityIssue(asked) = node.asked().remove(0) else {
        panic!()
    };
    assert_eq!((asked.role, asked.valid_secs), (Role::Tenant, 3 * 86_400));
    let (status, _) = fails(&node, &issue);
    assert_eq!(status, 2);
    assert_eq!(fs::read(&out).unwrap(), whole);
    let mut show = command(&node, "--json identity show");
    let output = show.env("FABRICBIOS_IDENTITY", &out).output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&shown["tenant"], &shown["role"]),
        (&json!("blue"), &json!("tenant"))
    );
    let expires_at_ms = shown["expires_at_unix_ms"].as_u64().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let days = Duration::from_millis(expires_at_ms).abs_diff(now).as_secs() / 86_400;
    assert!((2..=3).contains(&days), "{shown}");
}

#[test]
fn an_identity_that_was_refused_leaves_no_file() {
    let node = saying(refuse(
        LeaseError::NotPermitted,
        RefusalClass::Policy,
        "tenants may not",
    ));
    let out = node.dir().join("blue.identity");
    let (status, _) = fails(
        &node,
        &format!("identity issue --tenant blue --out {}", out.display()),
    );
    assert_eq!(status, 3);
    assert!(!out.exists());
}

#[test]
fn an_identity_that_others_can_read_is_warned_of() {
    let node = FakeNode::start(granting());
    let stderr = |line: &str| {
        let output = command(&node, line).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let query = format!("lease query {LEASE_TEXT}");
    assert_eq!(stderr(&query), "");
    for mode in [0o644, 0o640] {
        fs::set_permissions(node.admin(), fs::Permissions::from_mode(mode)).unwrap();
        let told = stderr(&query);
        assert!(
            told.contains(&format!("{mode:04o}")) && told.contains("chmod 600"),
            "{told}"
        );
        // With --json standard error has only the object of a failure.
        assert_eq!(stderr(&format!("--json {query}")), "");
    }
}

#[test]
fn a_file_that_is_no_identity_is_said_to_be_none_and_its_mode_is_not_looked_at() {
    let node = FakeNode::start(granting());
    fs::write(node.admin(), "a machine\n").unwrap();
    fs::set_permissions(node.admin(), fs::Permissions::from_mode(0o644)).unwrap();
    let (status, line) = line_of(&node, "ping");
    assert!(status == 2 && line.contains("no private key"), "{line}");
    assert!(!line.contains("chmod"), "{line}");
}

#[test]
fn without_an_identity_or_a_command_the_next_step_is_named() {
    let node = FakeNode::start(granting());
    let mut ping = command(&node, "ping");
    let output = ping.env_remove("FABRICBIOS_IDENTITY").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("/var/lib/fabricbios/admin.identity"),
        "{told}"
    );
    let (status, line) = line_of(&node, "");
    assert_eq!(status, 2);
    assert!(line.contains("`fabricctl --help`"), "{line}");
    assert!(!line.contains("run-watch"), "{line}");
}

#[test]
fn another_node_than_the_named_one_is_asked_nothing() {
    let mut node = FakeNode::start(granting());
    let (id, query) = (node.id().to_string(), format!("lease query {LEASE_TEXT}"));
    let named = |node: &FakeNode| fails(node, &format!("{query} --node-id {id}"));
    json_of(&node, &format!("{query} --node-id {}", id.to_uppercase()));
    // A restart does not change the id.
    node.crash_and_restart();
    json_of(&node, &format!("{query} --node-id {id}"));
    node.crash();
    node.serve_as_another();
    let by_environment = |id: &str| {
        let mut command = command(&node, &format!("--json {query}"));
        failure(&command.env("FABRICBIOS_NODE_ID", id).output().unwrap())
    };
    for (status, object) in [named(&node), by_environment(&id)] {
        let reason = json!({ "class": "permanent", "code": "UntrustedNode" });
        assert_eq!((status, &object["reason"]), (1, &reason), "{object}");
        let message = object["message"].as_str().unwrap();
        for part in [&id, &node.id().to_string(), &node.addr()] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
    assert_eq!(node.asked().len(), 2);
    // An empty id is that of a script whose question for the id has failed.
    for wrong in [
        "",
        "07",
        &id[1..],
        &format!("{id}0"),
        &id.replacen(&id[..1], "g", 1),
    ] {
        let (status, object) = by_environment(wrong);
        assert_eq!((status, &object["error"]), (2, &json!("usage")), "{object}");
        let message = object["message"].as_str().unwrap();
        for part in ["--node-id", "64 hexadecimal digits", "identity show"] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }
    assert_eq!(node.asked().len(), 2);
}

/// A node that says that this caller has asked it.
fn answering(tenant: &'static str, role: Role) -> FakeNode {
    FakeNode::start(move |_: &Request| {
        Ok(Reply::Identity(NodeIdentity {
            node_id: NodeId([1; 32]),
            epoch: Epoch(1),
            endpoint: Endpoint {
                addr: rdma().gid,
                port: 5_701,
            },
            tenant: tenant.into(),
            role,
            version: "0.1.0".into(),
        }))
    })
}

#[test]
fn the_fingerprint_of_the_fabric_is_shown() {
    let node = answering("admin", Role::Operator);
    let fingerprint = Identity::load(node.admin()).unwrap().fabric().unwrap();
    assert_eq!(json_of(&node, "identity show")["fabric"], fingerprint);
    let text = run(&node, "identity show").stdout;
    let text = String::from_utf8(text).unwrap();
    let row = text.lines().find(|row| row.starts_with("fabric "));
    assert!(row.is_some_and(|row| row.ends_with(&fingerprint)), "{text}");
}

#[test]
fn the_labels_of_a_node_are_shown() {
    let node = answering("node.fabricbios", Role::Node);
    let fabric = node.dir().join("fabric");
    DirBuilder::new().mode(0o700).create(&fabric).unwrap();
    fs::copy(node.dir().join("ca-key.pem"), fabric.join("ca-key.pem")).unwrap();
    let fabric = FabricDirectory::open(&fabric, SystemTime::now()).unwrap();
    let show = |labels: &[&str]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let request = rcgen::CertificateParams::default().serialize_request(&key);
        let request = request.unwrap().pem().unwrap();
        let member = Member::Node(labels.iter().map(|it| it.parse().unwrap()).collect());
        let signed = fabric
            .sign(&request, &member, None, SystemTime::now())
            .unwrap();
        let identity = node.dir().join("some.identity");
        fs::write(&identity, format!("{}{}", key.serialize_pem(), signed.pem)).unwrap();
        fs::set_permissions(&identity, fs::Permissions::from_mode(0o600)).unwrap();
        ["identity show", "--json identity show"].map(|line| {
            let mut show = command(&node, line);
            let shown = show.env("FABRICBIOS_IDENTITY", &identity).output().unwrap();
            assert_eq!(shown.status.code(), Some(0), "{shown:?}");
            String::from_utf8(shown.stdout).unwrap()
        })
    };
    let [text, json] = show(&["rack=r7", "row=2"]);
    assert!(
        text.contains("node with the labels rack=r7, row=2"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["labels"], json!(["rack=r7", "row=2"]));
    let [text, json] = show(&[]);
    assert!(text.contains("(node)"), "{text}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["labels"], json!([]));
}
