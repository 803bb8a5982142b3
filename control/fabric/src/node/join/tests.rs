//! Joining, moving on, and everything that can be wrong with an answer.

use fabricbios_wire::{IssueRequest, Reply, Role};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject};

use super::*;
use crate::{
    Ca, Signed,
    durable::faults::{self, Step},
    tenant_key,
};

const FILES: [&str; 5] = [CA_KEY, CA, NODE, ADMIN, JOINED];

fn now() -> SystemTime {
    SystemTime::now()
}

struct World {
    root: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn state_dir(&self) -> std::path::PathBuf {
        self.root.path().join("node")
    }

    /// A node that has started alone.
    fn node(&self) -> Fabric {
        Fabric::open_or_create(&self.state_dir(), now()).unwrap()
    }

    fn fabric(&self, name: &str) -> FabricDirectory {
        FabricDirectory::init(&self.root.path().join(name), now()).unwrap()
    }

    fn files(&self) -> [Option<Vec<u8>>; 5] {
        FILES.map(|name| fs::read(self.state_dir().join(name)).ok())
    }

    /// The answer of the fabric's CA to this node.
    fn answer(&self, fabric: &FabricDirectory, labels: &[&str]) -> String {
        let labels = labels.iter().map(|it| it.parse().unwrap()).collect();
        self.signed(fabric, &Member::Node(labels), None).pem
    }

    fn signed(
        &self,
        fabric: &FabricDirectory,
        member: &Member,
        validity: Option<Duration>,
    ) -> Signed {
        let request = Fabric::request(&self.state_dir()).unwrap();
        fabric.sign(&request, member, validity, now()).unwrap()
    }

    fn accept(&self, answer: &str) -> Result<Accepted, IdentityError> {
        Fabric::accept(&self.state_dir(), answer, now())
    }
}

fn blue(ca: &Ca) -> CertificateDer<'static> {
    let key = SecretKey::generate().unwrap();
    let csr = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let request = IssueRequest {
        tenant: "blue".into(),
        role: Role::Tenant,
        valid_secs: 0,
        csr_der: csr.der().to_vec(),
    };
    match ca.issue(&request, now()).unwrap() {
        Reply::Issued {
            certificate_pem, ..
        } => pem::first_certificate(certificate_pem.as_bytes()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_joins_keeps_its_id_and_tells_the_tenants_of_both_fabrics_apart() {
    let world = World::new();
    let alone = world.node();
    let (home, fabric) = (alone.id(), world.fabric("fabric"));
    let old_blue = blue(alone.ca().unwrap());
    let accepted = world
        .accept(&world.answer(&fabric, &["rack=r7", "row=2"]))
        .unwrap();
    assert_eq!(accepted.left, Some(home));
    let labels: Vec<String> = accepted.labels.iter().map(ToString::to_string).collect();
    assert_eq!(labels, ["rack=r7", "row=2"]);
    let again = Fabric::open_or_create(&world.state_dir(), now()).unwrap();
    for joined in [accepted.fabric, again] {
        assert_eq!(joined.node_id(), alone.node_id());
        assert_eq!(joined.id(), fabric.id());
        assert!(joined.ca().is_none() && joined.admin_identity().is_none());
        let name = |blue| joined.peer(blue).unwrap().principal.tenant.to_string();
        assert_eq!(name(&old_blue), "blue");
        assert_eq!(
            name(&blue(fabric.ca())),
            tenant_key("blue", fabric.id(), home)
        );
    }
    let [ca_key, ca, _node, admin, _joined] = world.files();
    assert_eq!((ca_key, admin), (None, None));
    assert_eq!(ca.unwrap(), fabric.ca().certificate_pem().as_bytes());
    assert_eq!(
        Fabric::check(&world.state_dir(), now()).unwrap(),
        Some(alone.node_id())
    );
}

#[test]
fn the_same_answer_again_changes_nothing_and_new_labels_leave_no_fabric() {
    let world = World::new();
    world.node();
    let fabric = world.fabric("fabric");
    let answer = world.answer(&fabric, &[]);
    world.accept(&answer).unwrap();
    let files = world.files();
    assert_eq!(world.accept(&answer).unwrap().left, None);
    assert_eq!(world.files(), files);
    let accepted = world.accept(&world.answer(&fabric, &["rack=r8"])).unwrap();
    assert_eq!((accepted.left, accepted.labels.len()), (None, 1));
    assert_eq!(accepted.fabric.certified().len(), 2);
}

#[test]
fn a_node_that_moves_on_and_comes_back_knows_its_home() {
    let world = World::new();
    let home = world.node().id();
    let (one, two) = (world.fabric("one"), world.fabric("two"));
    for (to, kept) in [(&one, 2), (&two, 3), (&one, 3)] {
        let joined = world.accept(&world.answer(to, &[])).unwrap().fabric;
        assert_eq!((joined.id(), joined.certified().len()), (to.id(), kept));
        for (ca, fabric) in [(one.ca(), one.id()), (two.ca(), two.id())] {
            let Ok(peer) = joined.peer(&blue(ca)) else {
                assert_eq!((kept, fabric), (2, two.id()), "not joined yet");
                continue;
            };
            assert_eq!(
                peer.principal.tenant.to_string(),
                tenant_key("blue", fabric, home)
            );
            assert_eq!(peer.fabric, fabric);
        }
    }
}

#[test]
fn an_answer_that_is_not_for_this_node_changes_nothing() {
    let (world, neighbour) = (World::new(), World::new());
    world.node();
    neighbour.node();
    let (fabric, other) = (world.fabric("fabric"), world.fabric("other"));
    let good = world.answer(&fabric, &[]);
    let of_other = world.answer(&other, &[]);
    let (leaf, ca) = good.split_at(good.find("-----END").unwrap());
    let (end, ca) = ca.split_at(ca.find("-----BEGIN").unwrap());
    let (leaf, other_ca) = (format!("{leaf}{end}"), other.ca().certificate_pem());
    let in_a_second = Some(Duration::from_secs(1));
    let member = Member::Node(Vec::new());
    let request = Fabric::request(&world.state_dir()).unwrap();
    let a_day_ago = now() - Duration::from_secs(86_400);
    let expired = fabric
        .sign(&request, &member, in_a_second, a_day_ago)
        .unwrap();
    let files = world.files();
    for (answer, word) in [
        (neighbour.answer(&fabric, &[]), "is of node"),
        (format!("{leaf}{other_ca}"), "not accepted"),
        (expired.pem, "xpired"),
        (
            world.signed(&fabric, &Member::Scheduler, None).pem,
            "no identity of a node",
        ),
        (leaf.clone(), "1 certificates"),
        (format!("{good}{ca}"), "3 certificates"),
        (String::new(), "0 certificates"),
        ("rubbish".into(), "0 certificates"),
        (good[..good.len() / 3].into(), "cut short"),
        (format!("{of_other}{good}"), "4 certificates"),
    ] {
        let why = world.accept(&answer).unwrap_err().to_string();
        assert!(
            why.contains(word) && why.contains("nothing has changed"),
            "{word}: {why}"
        );
        assert_eq!(world.files(), files, "{word}");
    }
    let nobody = World::new();
    for why in [
        nobody.accept(&good).unwrap_err(),
        Fabric::request(&nobody.state_dir()).unwrap_err(),
    ] {
        assert!(why.to_string().contains("first start"), "{why}");
    }
    world.accept(&good).unwrap();
}

#[test]
fn a_join_that_was_cut_short_holds_not_at_all_or_is_finished() {
    for later in [false, true] {
        let world = World::new();
        let (alone, fabric) = (world.node(), world.fabric("fabric"));
        let before = match later {
            false => alone.id(),
            true => world
                .accept(&world.answer(&world.fabric("first"), &[]))
                .unwrap()
                .fabric
                .id(),
        };
        let old = world.files();
        let answer = world.answer(&fabric, &[]);
        world.accept(&answer).unwrap();
        let new = world.files();
        // As after a power cut: the files that are written later are the old ones. joined.pem comes first, then
        // node.identity, then the others.
        for (written, holds) in [(&[JOINED][..], false), (&[JOINED, NODE], true)] {
            for ((name, old), new) in FILES.iter().zip(&old).zip(&new) {
                let path = world.state_dir().join(name);
                match if written.contains(name) { new } else { old } {
                    Some(bytes) => fs::write(path, bytes).unwrap(),
                    None => drop(fs::remove_file(path)),
                }
            }
            let found = Fabric::open_or_create(&world.state_dir(), now()).unwrap();
            assert_eq!(found.node_id(), alone.node_id());
            assert_eq!(found.id(), if holds { fabric.id() } else { before });
            assert_eq!(found.ca().is_some(), !holds && !later);
            let again = world.accept(&answer).unwrap().fabric;
            assert_eq!(again.id(), fabric.id());
            assert_eq!(world.files(), new);
        }
    }
}

#[test]
fn a_node_of_a_fabrics_machine_is_certified_at_its_start() {
    let world = World::new();
    let fabric = world.fabric("fabric");
    let start = |at| {
        let certified = Fabric::open_certified(&world.state_dir(), &fabric, at);
        certified.unwrap().fabric
    };
    let first = start(now());
    assert!(first.is_new() && first.ca().is_none());
    assert_eq!((first.id(), first.certified().len()), (fabric.id(), 1));
    // The fabric of the first start is home: its tenants go by their names.
    assert_eq!(
        first
            .peer(&blue(fabric.ca()))
            .unwrap()
            .principal
            .tenant
            .to_string(),
        "blue"
    );
    let files = world.files();
    let second = start(now());
    let without = Fabric::open_or_create(&world.state_dir(), now()).unwrap();
    for later in [second, without] {
        assert_eq!((later.node_id(), later.is_new()), (first.node_id(), false));
        assert_eq!(world.files(), files);
    }
    let short = Some(Duration::from_secs(86_400));
    let labels = Member::Node(vec!["rack=r7".parse().unwrap()]);
    world
        .accept(&world.signed(&fabric, &labels, short).pem)
        .unwrap();
    let renewed = start(now());
    let certificate = &renewed.certified()[0].certificate;
    assert!(subject::not_after(certificate).unwrap() > now() + LEFT_MIN);
    assert_eq!(subject::labels(certificate).unwrap().len(), 1);
}

#[test]
fn a_node_that_was_alone_is_certified_at_a_start_and_keeps_its_home() {
    let world = World::new();
    let (alone, fabric) = (world.node(), world.fabric("fabric"));
    let joined = Fabric::open_certified(&world.state_dir(), &fabric, now()).unwrap();
    assert_eq!(joined.left, Some(alone.id()));
    let joined = joined.fabric;
    assert_eq!(joined.node_id(), alone.node_id());
    assert_eq!(
        joined
            .peer(&blue(alone.ca().unwrap()))
            .unwrap()
            .principal
            .tenant
            .to_string(),
        "blue"
    );
    assert!(world.files()[0].is_none());
}

#[test]
fn a_first_start_that_was_cut_short_is_begun_again() {
    let world = World::new();
    let fabric = world.fabric("fabric");
    Fabric::open_certified(&world.state_dir(), &fabric, now()).unwrap();
    for name in [NODE, CA] {
        fs::remove_file(world.state_dir().join(name)).unwrap();
    }
    let joined = Fabric::open_certified(&world.state_dir(), &fabric, now()).unwrap();
    assert_eq!(joined.fabric.id(), fabric.id());
    // With its copy of the CA's certificate there, the node's identity was lost.
    fs::remove_file(world.state_dir().join(NODE)).unwrap();
    let lost = Fabric::open_certified(&world.state_dir(), &fabric, now()).unwrap_err();
    assert!(
        lost.to_string().contains("a node was here before"),
        "{lost}"
    );
}

#[test]
fn a_ca_is_renewed_where_its_key_is_and_a_new_key_leaves_the_fabric() {
    let world = World::new();
    let (alone, fabric) = (world.node(), world.fabric("fabric"));
    world.accept(&world.answer(&fabric, &[])).unwrap();
    let files = world.files();
    let why = Fabric::renew(&world.state_dir(), false, now())
        .unwrap_err()
        .to_string();
    assert!(
        why.contains(&fabric.id().to_string()) && why.contains("fabricctl fabric sign"),
        "{why}"
    );
    assert_eq!(world.files(), files);
    let left = Fabric::renew(&world.state_dir(), true, now()).unwrap();
    assert_eq!(left.node_id(), alone.node_id());
    assert!(left.ca().is_some() && Fabric::joined(&world.state_dir()).unwrap().is_none());
    assert_eq!(
        Fabric::open_or_create(&world.state_dir(), now())
            .unwrap()
            .id(),
        left.id()
    );
}

#[test]
fn damaged_files_of_a_joined_node_are_named_and_left_alone() {
    let world = World::new();
    world.node();
    world
        .accept(&world.answer(&world.fabric("fabric"), &[]))
        .unwrap();
    for name in [JOINED, NODE] {
        let path = world.state_dir().join(name);
        let whole = fs::read(&path).unwrap();
        for damage in [&whole[..whole.len() / 3], b"", b"rubbish", b"home 12\n"] {
            fs::write(&path, damage).unwrap();
            let why = Fabric::open_or_create(&world.state_dir(), now())
                .unwrap_err()
                .to_string();
            assert!(
                why.contains(path.to_str().unwrap()) && why.contains("backup"),
                "{why}"
            );
            assert_eq!(fs::read(&path).unwrap(), damage);
        }
        fs::write(&path, whole).unwrap();
    }
    // The identity of a former time, of a fabric that joined.pem does not know.
    let (other, path) = (World::new(), world.state_dir().join(NODE));
    other.node();
    fs::copy(other.state_dir().join(NODE), &path).unwrap();
    let why = Fabric::open_or_create(&world.state_dir(), now())
        .unwrap_err()
        .to_string();
    assert!(why.contains("another fabric"), "{why}");
}

#[test]
fn a_name_goes_to_no_other_fabrics_tenant_when_the_node_leaves_and_comes_back() {
    let world = World::new();
    let fabric = world.fabric("fabric");
    let home = fabric.id();
    let state_dir = world.state_dir();
    Fabric::open_certified(&state_dir, &fabric, now()).unwrap();
    Fabric::renew(&state_dir, true, now()).unwrap();
    let alone = Fabric::open_or_create(&state_dir, now()).unwrap();
    let its_blue = blue(alone.ca().unwrap());
    fn name(fabric: &Fabric, blue: &CertificateDer<'_>) -> String {
        fabric.peer(blue).unwrap().principal.tenant.to_string()
    }
    assert_eq!(
        name(&alone, &its_blue),
        tenant_key("blue", alone.id(), home)
    );
    let back = Fabric::open_certified(&state_dir, &fabric, now())
        .unwrap()
        .fabric;
    assert_eq!(name(&back, &blue(fabric.ca())), "blue");
    assert_eq!(name(&back, &its_blue), tenant_key("blue", alone.id(), home));
}

#[test]
fn the_others_of_a_fabric_name_its_tenants_without_it_and_those_of_others_with_theirs() {
    let world = World::new();
    let home = world.node();
    let (its_blue, home) = (blue(home.ca().unwrap()), home.id());
    let fabric = world.fabric("fabric");
    let present_blue = blue(fabric.ca());
    let joined = world.accept(&world.answer(&fabric, &[])).unwrap().fabric;
    let named = |blue| {
        let own = joined.peer(blue).unwrap().principal.tenant.to_string();
        (own.clone(), joined.tenant_in_fabric(&own))
    };
    let key = tenant_key("blue", fabric.id(), home);
    assert_eq!(named(&present_blue), (key, "blue".to_owned()));
    let key = tenant_key("blue", home, fabric.id());
    assert_eq!(named(&its_blue), ("blue".to_owned(), key));
    let third = tenant_key("blue", FabricId([7; 16]), home);
    assert_eq!(joined.tenant_in_fabric(&third), third);
}

#[test]
fn a_key_of_another_ca_beside_a_joined_node_is_not_deleted() {
    let world = World::new();
    world.node();
    let (fabric, other) = (world.fabric("fabric"), World::new());
    world.accept(&world.answer(&fabric, &[])).unwrap();
    other.node();
    for name in [CA_KEY, ADMIN] {
        let path = world.state_dir().join(name);
        for from in [
            other.state_dir().join(name),
            world.root.path().join("fabric").join(name),
        ] {
            fs::copy(from, &path).unwrap();
            let why = Fabric::open_or_create(&world.state_dir(), now())
                .unwrap_err()
                .to_string();
            assert!(why.contains("move it away"), "{why}");
            assert!(path.exists());
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_node_keeps_the_latest_seven_fabrics_that_it_has_left() {
    let world = World::new();
    let home = world.node().id();
    for count in 1..=9 {
        let fabric = world.fabric(&count.to_string());
        let joined = world.accept(&world.answer(&fabric, &[])).unwrap().fabric;
        assert_eq!(joined.certified().len(), 1 + count.min(FORMER_MAX));
        let name = joined
            .peer(&blue(fabric.ca()))
            .unwrap()
            .principal
            .tenant
            .to_string();
        assert_eq!(name, tenant_key("blue", fabric.id(), home));
    }
}

#[test]
fn the_directory_of_a_fabric_is_no_state_directory() {
    let world = World::new();
    world.fabric("node");
    for why in [
        Fabric::open_or_create(&world.state_dir(), now()).unwrap_err(),
        Fabric::check(&world.state_dir(), now()).unwrap_err(),
    ] {
        assert!(
            why.to_string().contains("the directory of a fabric"),
            "{why}"
        );
    }
    assert_eq!(fs::read_dir(world.state_dir()).unwrap().count(), 4);
}

#[test]
fn a_leave_that_was_cut_short_is_repeated_also_a_second_time() {
    let world = World::new();
    let fabric = world.fabric("fabric");
    let state_dir = world.state_dir();
    let id = Fabric::open_certified(&state_dir, &fabric, now())
        .unwrap()
        .fabric
        .node_id();
    for _ in 0..2 {
        let old = world.files();
        Fabric::renew(&state_dir, true, now()).unwrap();
        let new = world.files();
        // As after a power cut behind the first file, the key of the new CA.
        for ((name, old), new) in FILES.iter().zip(&old).zip(&new) {
            let path = state_dir.join(name);
            match if *name == CA_KEY { new } else { old } {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => drop(fs::remove_file(path)),
            }
        }
        let why = Fabric::open_or_create(&state_dir, now())
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("move it away") || why.contains("renew-ca --new-key"),
            "{why}"
        );
        let left = Fabric::renew(&state_dir, true, now()).unwrap();
        assert_eq!(left.node_id(), id);
        let again = Fabric::open_or_create(&state_dir, now()).unwrap();
        assert_eq!((again.id(), again.node_id()), (left.id(), id));
        // The name of its first fabric stays that fabric's.
        let its_blue = again
            .peer(&blue(again.ca().unwrap()))
            .unwrap()
            .principal
            .tenant;
        assert_eq!(*its_blue, tenant_key("blue", again.id(), fabric.id())[..]);
        // The CA keeps its key.
        Fabric::renew(&state_dir, false, now()).unwrap();
    }
}

#[test]
fn one_directory_is_not_both_also_when_the_fabric_is_half_made() {
    let world = World::new();
    world.fabric("node");
    for name in [CA, ADMIN, "scheduler.identity"] {
        fs::remove_file(world.state_dir().join(name)).unwrap();
    }
    let half = FabricDirectory::open(&world.state_dir(), now()).unwrap();
    let why = Fabric::open_certified(&world.state_dir(), &half, now())
        .unwrap_err()
        .to_string();
    assert!(why.contains("the directory of a fabric"), "{why}");
    assert_eq!(fs::read_dir(world.state_dir()).unwrap().count(), 1);
}

#[test]
fn what_a_join_would_have_to_delete_is_looked_at_before_it_holds() {
    let world = World::new();
    world.node();
    let (first, second) = (world.fabric("first"), world.fabric("second"));
    world.accept(&world.answer(&first, &[])).unwrap();
    let other = World::new();
    other.node();
    let answer = world.answer(&second, &[]);
    for name in [CA_KEY, ADMIN] {
        let path = world.state_dir().join(name);
        fs::copy(other.state_dir().join(name), &path).unwrap();
        let files = world.files();
        let why = world.accept(&answer).unwrap_err().to_string();
        assert!(
            why.contains(name) && why.contains("move it away"),
            "{name}: {why}"
        );
        assert_eq!(world.files(), files, "{name}");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(world.accept(&answer).unwrap().fabric.id(), second.id());
}

#[test]
fn a_join_whose_write_fails_holds_not_at_all_or_says_what_is_left() {
    for (step, name, holds) in [
        (Step::Rename, JOINED, false),
        (Step::Sync, JOINED, false),
        (Step::Rename, NODE, false),
        (Step::Sync, NODE, true),
        (Step::Rename, CA, true),
        (Step::Sync, CA, true),
    ] {
        let world = World::new();
        let (alone, fabric) = (world.node(), world.fabric("fabric"));
        let answer = world.answer(&fabric, &[]);
        match faults::with(step, name, || world.accept(&answer)) {
            Ok(accepted) => {
                assert!(holds, "{step:?} {name}");
                assert_eq!(accepted.fabric.id(), fabric.id());
                let left = accepted.unfinished.unwrap().to_string();
                assert!(left.contains(name), "{left}");
            }
            Err(error) => assert!(!holds, "{step:?} {name}: {error}"),
        }
        // What the call has said is what the next start finds.
        let found = Fabric::open_or_create(&world.state_dir(), now()).unwrap();
        let expected = if holds { fabric.id() } else { alone.id() };
        assert_eq!(found.id(), expected, "{step:?} {name}");
        let again = world.accept(&answer).unwrap();
        assert!(again.unfinished.is_none());
        assert_eq!(again.fabric.id(), fabric.id());
        assert!(!world.state_dir().join(CA_KEY).exists());
    }
}

#[test]
fn an_answer_whose_second_certificate_is_not_of_a_ca_changes_nothing() {
    let world = World::new();
    world.node();
    let request = Fabric::request(&world.state_dir()).unwrap();
    let request = CertificateSigningRequestDer::from_pem_slice(request.as_bytes()).unwrap();
    let is_ca = || IsCa::Ca(BasicConstraints::Unconstrained);
    let signs = KeyUsagePurpose::KeyCertSign;
    let other_use = KeyUsagePurpose::CrlSign;
    for (is_ca, usages, lacks) in [
        (IsCa::NoCa, vec![signs], Some("CA=true")),
        (IsCa::ExplicitNoCa, vec![signs], Some("CA=true")),
        (is_ca(), vec![], Some("keyCertSign")),
        (is_ca(), vec![other_use], Some("keyCertSign")),
        (is_ca(), vec![signs, other_use], None),
    ] {
        let key = SecretKey::generate().unwrap();
        let mut params = CertificateParams::default();
        (params.is_ca, params.key_usages) = (is_ca, usages);
        let certificate = params.self_signed(&key).unwrap().pem();
        let ca = Ca::from_pem(&format!("{}{certificate}", *key.pem())).unwrap();
        let member = Member::Node(Vec::new());
        let signed = ca.certify_request(&request, &member, None, now()).unwrap();
        let files = world.files();
        let outcome = world.accept(&format!("{signed}{certificate}"));
        let Some(lacks) = lacks else {
            outcome.unwrap();
            continue;
        };
        let why = outcome.unwrap_err().to_string();
        assert!(
            why.contains(lacks) && why.contains("nothing has changed"),
            "{why}"
        );
        assert_eq!(world.files(), files);
    }
}

#[test]
fn a_former_fabric_whose_ca_has_ended_has_no_clients_and_no_place() {
    let year = Duration::from_secs(365 * 86_400);
    let world = World::new();
    world.node();
    let join = |name: &str, at: SystemTime| {
        let fabric = FabricDirectory::init(&world.root.path().join(name), at).unwrap();
        let request = Fabric::request(&world.state_dir()).unwrap();
        let member = Member::Node(Vec::new());
        let answer = fabric.sign(&request, &member, None, at).unwrap().pem;
        let accepted = Fabric::accept(&world.state_dir(), &answer, at).unwrap();
        (accepted.fabric, fabric)
    };
    let ids = |fabric: &Fabric| -> Vec<FabricId> {
        let all = fabric.certified().iter();
        all.map(|it| it.fabric).collect()
    };
    let later = now() + 5 * year;
    let (joined, first) = join("first", later);
    assert_eq!(ids(&joined).len(), 2);
    // The CA of the node's first start, which was valid for ten years.
    let end = now() + 11 * year;
    let start = |at| Fabric::open_or_create(&world.state_dir(), at).unwrap();
    assert_eq!(ids(&start(end)), [first.id()]);
    let (joined, second) = join("second", end);
    assert_eq!(ids(&joined), [second.id(), first.id()]);
    assert_eq!(ids(&start(end)), ids(&joined));
    // The present fabric stays although its CA has ended; a join at that time does not keep it.
    let (end, last) = (now() + 16 * year, now() + 22 * year);
    assert_eq!(ids(&start(end)), [second.id()]);
    assert_eq!(ids(&start(last)), [second.id()]);
    let (joined, third) = join("third", last);
    assert_eq!(ids(&joined), [third.id()]);
    assert_eq!(ids(&start(last)), [third.id()]);
}
