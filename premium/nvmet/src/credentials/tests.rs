use super::*;
use crate::host_records::fake::Disk;

const A: LeaseId = LeaseId(1);
const B: LeaseId = LeaseId(2);
const NAME: &str = "nqn.2014-08.org.nvmexpress:uuid:3f0c5f5e-93a2-4a5b-8d7c-0c1d2e3f4a5b";
const OTHER: &str = "nqn.2020-01.com.example:client";

fn open(disk: &Disk) -> Credentials {
    Credentials::open(&disk.records(), Arc::new(disk.clone())).unwrap()
}

fn names(name: &str) -> BlockTerms {
    BlockTerms {
        host_nqn: Some(name.parse().unwrap()),
        ..BlockTerms::default()
    }
}

fn take(all: &mut Credentials, lease: LeaseId, terms: &BlockTerms) -> Credential {
    all.assign(lease, "ann", terms, |_| Ok(false))
        .unwrap()
        .credential
}

fn refusal(all: &mut Credentials, tenant: &str, terms: &BlockTerms, foreign: bool) -> String {
    match all.assign(LeaseId(99), tenant, terms, |_| Ok(foreign)) {
        Err(BindError::Refused(error)) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_lease_has_the_same_names_and_keys_after_a_restart() {
    let disk = Disk::default();
    let terms = BlockTerms {
        mutual_auth: true,
        ..BlockTerms::default()
    };
    let before = take(&mut open(&disk), A, &terms);
    assert!(before.minted && before.ctrl_secret.is_some());
    assert_eq!(before.host_nqn.uuid(), Some(before.host_id));
    let mut again = open(&disk);
    assert_eq!(take(&mut again, A, &terms), before);
    assert_eq!(again.leases().collect::<Vec<_>>(), [A]);
    assert_ne!(take(&mut again, B, &terms).secret, before.secret);
}

#[test]
fn no_text_of_ours_shows_keys() {
    let credential = take(&mut open(&Disk::default()), A, &BlockTerms::default());
    let shown = format!("{credential:?}");
    assert!(!shown.contains(credential.secret.reveal()), "{shown}");
}

#[test]
fn a_host_of_a_tenant_is_shared_by_its_leases_and_goes_with_the_last() {
    let disk = Disk::default();
    let mut all = open(&disk);
    let one = take(&mut all, A, &names(NAME));
    let two = take(&mut all, B, &names(NAME));
    assert_eq!((&one.secret, one.host_id), (&two.secret, two.host_id));
    assert_eq!(Some(one.host_id), one.host_nqn.uuid());
    all.release(A, |_| panic!("B still has it")).unwrap();
    let mut removed = None;
    all.release(B, |name| {
        removed = Some(name.clone());
        Ok(())
    })
    .unwrap();
    assert_eq!(removed, Some(one.host_nqn));
    assert!(disk.records().is_empty());
    all.release(B, |_| panic!("it is gone")).unwrap();
}

#[test]
fn a_host_that_is_somebody_elses_is_refused() {
    let disk = Disk::default();
    let mut all = open(&disk);
    let minted = take(&mut all, A, &BlockTerms::default());
    take(&mut all, B, &names(NAME));
    let of_bob = refusal(&mut all, "bob", &names(NAME), false);
    assert!(of_bob.contains("in use by another lease") && !of_bob.contains("ann"));
    let of_lease = refusal(&mut all, "ann", &names(minted.host_nqn.as_str()), false);
    assert!(of_lease.contains("in use by another lease"), "{of_lease}");
    let foreign = refusal(&mut all, "ann", &names(OTHER), true);
    assert!(foreign.contains("not made"), "{foreign}");
    assert_eq!(all.leases().count(), 2, "a refusal leaves nothing");
}

#[test]
fn a_host_id_belongs_to_one_name() {
    let disk = Disk::default();
    let mut all = open(&disk);
    let id = take(&mut all, A, &names(NAME)).host_id;
    let mut terms = names(OTHER);
    terms.host_id = Some(id);
    assert!(refusal(&mut all, "ann", &terms, false).contains("belongs to another host NQN"));
    let mut terms = names(NAME);
    terms.host_id = Some(HostId([7; 16]));
    assert!(refusal(&mut all, "ann", &terms, false).contains("has host id"));
    let other = take(&mut all, B, &names(OTHER));
    assert_eq!(take(&mut open(&disk), B, &names(OTHER)), other);
}

#[test]
fn new_keys_are_refused_where_another_lease_would_lose_its_own() {
    let disk = Disk::default();
    let mut all = open(&disk);
    let old = take(&mut all, A, &names(NAME));
    let new = all.with_new_keys(A).unwrap();
    assert_ne!(new.secret, old.secret);
    assert_eq!(all.find(A), Some(&old), "not kept yet");
    take(&mut all, B, &names(NAME));
    assert!(matches!(all.with_new_keys(A), Err(BindError::Refused(_))));
}

#[test]
fn a_damaged_record_is_told_and_not_shown() {
    let disk = Disk::default();
    let damaged = br#"{"secret":"DHHC-1:01:hidden""#.to_vec().into();
    disk.write(7, Some(damaged));
    let error = Credentials::open(&disk.records(), Arc::new(disk.clone()));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("damaged") && !text.contains("hidden"),
        "{text}"
    );
}

#[test]
fn a_record_has_an_end() {
    let disk = Disk::default();
    let mut all = open(&disk);
    let mut many = take(&mut all, A, &names(NAME));
    many.leases = (0..120_000)
        .map(|number| LeaseId(u128::MAX - number))
        .collect();
    let error = all.store(many).unwrap_err().to_string();
    assert!(error.contains("too many leases"), "{error}");
    assert_eq!(open(&disk).leases().collect::<Vec<_>>(), [A]);
}
