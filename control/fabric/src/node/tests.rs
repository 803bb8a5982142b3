//! First start, later starts, and everything that can be wrong with the files.

use std::{fs, os::unix::fs::PermissionsExt};

use fabricbios_wire::{IssueRequest, LeaseError, Role};

use super::*;

const ALL: [&str; 4] = [CA_KEY, CA, NODE, ADMIN];

fn now() -> SystemTime {
    SystemTime::now()
}

fn made() -> (tempfile::TempDir, Fabric) {
    let dir = tempfile::tempdir().unwrap();
    let fabric = Fabric::open_or_create(dir.path(), now()).unwrap();
    (dir, fabric)
}

fn csr(params: CertificateParams) -> Vec<u8> {
    let key = SecretKey::generate().unwrap();
    params.serialize_request(&key).unwrap().der().to_vec()
}

fn issue_request(csr_der: Vec<u8>) -> IssueRequest {
    IssueRequest {
        tenant: "blue".into(),
        role: Role::Tenant,
        valid_secs: 0,
        csr_der,
    }
}

fn issued(fabric: &Fabric, request: &IssueRequest) -> CertificateDer<'static> {
    match fabric.ca().unwrap().issue(request, now()).unwrap() {
        Reply::Issued {
            certificate_pem,
            ca_pem,
        } => {
            assert_eq!(ca_pem, fabric.ca().unwrap().certificate_pem());
            pem::first_certificate(certificate_pem.as_bytes()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_first_start_makes_private_files_and_the_next_one_finds_the_same_node() {
    let (dir, first) = made();
    assert!(first.is_new());
    for name in ALL {
        let mode = fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let second = Fabric::open_or_create(dir.path(), now()).unwrap();
    assert!(!second.is_new());
    assert_eq!(second.node_id(), first.node_id());
    assert_eq!(
        second.ca().unwrap().certificate(),
        first.ca().unwrap().certificate()
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), ALL.len());
}

#[test]
fn an_interrupted_first_start_is_finished_by_the_next() {
    let (dir, first) = made();
    for name in [CA, NODE, ADMIN] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let second = Fabric::open_or_create(dir.path(), now()).unwrap();
    assert_eq!(
        second.ca().unwrap().certificate(),
        first.ca().unwrap().certificate()
    );
    assert!(ALL.iter().all(|name| dir.path().join(name).exists()));
}

#[test]
fn a_lost_ca_key_is_not_replaced_behind_the_holders_of_its_identities() {
    let (dir, _fabric) = made();
    fs::remove_file(dir.path().join(CA_KEY)).unwrap();
    let error = Fabric::open_or_create(dir.path(), now())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(CA_KEY) && error.contains("backup"),
        "{error}"
    );
    assert!(!dir.path().join(CA_KEY).exists());
}

#[test]
fn a_lost_node_identity_is_not_replaced_until_the_operator_begins_anew() {
    for left in [&[CA, ADMIN][..], &[CA], &[ADMIN]] {
        let (dir, fabric) = made();
        let at = |name: &str| dir.path().join(name);
        for name in [NODE, CA, ADMIN].iter().filter(|it| !left.contains(it)) {
            fs::remove_file(at(name)).unwrap();
        }
        let start = Fabric::open_or_create(dir.path(), now()).map(drop);
        for refused in [start, Fabric::check(dir.path(), now()).map(drop)] {
            let why = refused.unwrap_err().to_string();
            for word in [
                at(NODE).to_str().unwrap(),
                "restore the file",
                "ca.pem, admin.identity",
            ] {
                assert!(why.contains(word), "{why}");
            }
        }
        assert!(!at(NODE).exists());
        left.iter().for_each(|it| fs::remove_file(at(it)).unwrap());
        let anew = Fabric::open_or_create(dir.path(), now()).unwrap();
        assert_ne!(anew.node_id(), fabric.node_id());
    }
}

#[test]
fn the_error_of_the_system_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(CA_KEY)).unwrap();
    let error = Fabric::check(dir.path(), now()).unwrap_err();
    assert!(error.to_string().contains("Is a directory"), "{error}");
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn a_file_that_is_cut_short_is_called_so() {
    for name in [CA_KEY, NODE, ADMIN] {
        let (dir, _fabric) = made();
        let path = dir.path().join(name);
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.split("-----END").next().unwrap()).unwrap();
        let why = Fabric::check(dir.path(), now()).unwrap_err().to_string();
        assert!(why.contains("cut short"), "{name}: {why}");
        assert!(!why.contains('[') && !why.contains("marker"), "{why}");
    }
}

#[test]
fn a_damaged_file_is_named_with_a_remedy_and_left_alone() {
    for name in ALL {
        let (dir, _fabric) = made();
        let path = dir.path().join(name);
        let whole = fs::read(&path).unwrap();
        for damage in [&whole[..whole.len() / 3], b"", b"rubbish", b"\xff\xfe"] {
            fs::write(&path, damage).unwrap();
            let error = Fabric::open_or_create(dir.path(), now())
                .unwrap_err()
                .to_string();
            assert!(error.contains(path.to_str().unwrap()), "{name}: {error}");
            assert_eq!(fs::read(&path).unwrap(), damage, "{name}");
        }
        fs::write(&path, &whole).unwrap();
        Fabric::open_or_create(dir.path(), now()).unwrap();
    }
}

#[test]
fn files_of_another_fabric_are_refused_and_nothing_is_lost() {
    let (dir, fabric) = made();
    let (other, _fabric) = made();
    let files = || ALL.map(|name| fs::read(dir.path().join(name)).unwrap());
    for name in ALL {
        let path = dir.path().join(name);
        let own = fs::read(&path).unwrap();
        fs::copy(other.path().join(name), &path).unwrap();
        let before = files();
        let start = Fabric::open_or_create(dir.path(), now()).map(drop);
        let check = Fabric::check(dir.path(), now()).map(drop);
        let why = start.unwrap_err().to_string();
        assert!(why.contains(dir.path().to_str().unwrap()), "{why}");
        assert_eq!(check.unwrap_err().to_string(), why);
        assert_eq!(files(), before);
        fs::write(&path, own).unwrap();
    }
    // Each of these two files of this fabric is in the place of the other.
    fs::rename(dir.path().join(NODE), dir.path().join("moved")).unwrap();
    fs::copy(dir.path().join(ADMIN), dir.path().join(NODE)).unwrap();
    let why = Fabric::open_or_create(dir.path(), now())
        .unwrap_err()
        .to_string();
    assert!(
        why.contains(NODE) && why.contains("no identity of a node"),
        "{why}"
    );
    let theirs = fs::read(dir.path().join(ADMIN)).unwrap();
    fs::copy(dir.path().join("moved"), dir.path().join(ADMIN)).unwrap();
    fs::rename(dir.path().join("moved"), dir.path().join(NODE)).unwrap();
    let why = Fabric::open_or_create(dir.path(), now())
        .unwrap_err()
        .to_string();
    assert!(why.contains(ADMIN) && why.contains("no operator"), "{why}");
    fs::write(dir.path().join(ADMIN), theirs).unwrap();
    let again = Fabric::open_or_create(dir.path(), now()).unwrap();
    assert_eq!(again.node_id(), fabric.node_id());
}

#[test]
fn a_check_makes_no_file_and_finds_the_node_that_is_there() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(Fabric::check(empty.path(), now()).unwrap(), None);
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
    let (dir, fabric) = made();
    let found = Fabric::check(dir.path(), now()).unwrap();
    assert_eq!(found, Some(fabric.node_id()));
}

#[test]
fn the_first_operator_is_an_operator_and_is_renewed_before_it_expires() {
    let (dir, fabric) = made();
    let read = || fs::read(fabric.admin_identity().unwrap()).unwrap();
    let before = read();
    let peer = Subject::from_certificate(&pem::first_certificate(&before).unwrap()).unwrap();
    assert_eq!((&*peer.name, peer.role), ("admin", Role::Operator));
    Fabric::open_or_create(dir.path(), now()).unwrap();
    assert_eq!(read(), before);
    let a_year_on = now() + Duration::from_secs(360 * 86_400);
    Fabric::open_or_create(dir.path(), a_year_on).unwrap();
    let after = pem::first_certificate(&read()).unwrap();
    assert!(Subject::from_certificate(&after).unwrap().not_after > a_year_on + ADMIN_LEFT_MIN);
}

#[test]
fn of_a_signing_request_only_the_key_is_taken() {
    let (_dir, fabric) = made();
    let mut params = CertificateParams::new(vec![crate::NODE_DNS_NAME.to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "victim");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = issued(&fabric, &issue_request(csr(params)));
    let peer = Subject::from_certificate(&certificate).unwrap();
    assert_eq!((&*peer.name, peer.role), ("blue", Role::Tenant));
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    assert!(parsed.subject_alternative_name().unwrap().is_none());
    assert!(!parsed.is_ca());
    let uses = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(uses.client_auth && !uses.server_auth && !uses.any);
}

#[test]
fn a_certificate_ends_when_asked_and_never_after_its_ca() {
    let (_dir, fabric) = made();
    let ca_end = subject::not_after(fabric.ca().unwrap().certificate()).unwrap();
    let end = |valid_secs| {
        let request = IssueRequest {
            valid_secs,
            ..issue_request(csr(CertificateParams::default()))
        };
        Subject::from_certificate(&issued(&fabric, &request))
            .unwrap()
            .not_after
    };
    let in_a_minute = now() + Duration::from_secs(61);
    assert!(end(60) <= in_a_minute);
    assert!(end(0) > now() + ca::DEFAULT_VALIDITY - Duration::from_secs(60));
    assert_eq!(end(u32::MAX), ca_end);
}

#[test]
fn a_request_that_proves_nothing_is_refused() {
    let (_dir, fabric) = made();
    let good = csr(CertificateParams::default());
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    let with_tail = [&good[..], &[0]].concat();
    let cases = [
        forged,
        with_tail,
        Vec::new(),
        vec![0x30; 64],
        vec![0; 5_000],
        good[..40].to_vec(),
    ];
    for bytes in cases {
        let refusal = fabric
            .ca()
            .unwrap()
            .issue(&issue_request(bytes), now())
            .unwrap_err();
        assert_eq!(refusal.error, LeaseError::InvalidArgs, "{refusal}");
    }
    for tenant in ["", "UPPER", "two words", &"a".repeat(65)] {
        let request = IssueRequest {
            tenant: tenant.into(),
            ..issue_request(good.clone())
        };
        assert_eq!(
            fabric
                .ca()
                .unwrap()
                .issue(&request, now())
                .unwrap_err()
                .error,
            LeaseError::InvalidArgs
        );
    }
}

#[test]
fn the_nodes_certificate_names_a_node_and_the_cas_nobody() {
    let (_dir, fabric) = made();
    let node = Subject::from_certificate(&fabric.certified()[0].certificate).unwrap();
    assert_eq!(node.role, Role::Node);
    Subject::from_certificate(fabric.ca().unwrap().certificate()).unwrap_err();
}

#[test]
fn nothing_secret_is_printed() {
    let (dir, fabric) = made();
    let printed = format!("{fabric:?}");
    let key = fs::read_to_string(dir.path().join(NODE)).unwrap();
    let line = key
        .lines()
        .skip_while(|l| !l.contains("PRIVATE KEY"))
        .nth(1)
        .unwrap();
    assert!(
        !printed.contains(line) && !printed.contains("PRIVATE"),
        "{printed}"
    );
}
