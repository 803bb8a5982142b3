use std::{
    cell::RefCell,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use fabricbios_kernfs::Tree;
use fabricbios_wire::{BlockTerms, LeaseId};
use proptest::prelude::*;

use super::*;
use crate::{
    credentials::{Credential, Credentials},
    host_records::fake::Disk,
    names, plan,
};

const MARK: &str = "nqn.2026-11.org.fabricbios:0011223344556677:host-2";
const SUBSYSTEM: &str = "nqn.2026-11.org.fabricbios:0011223344556677:1";

/// configfs, as far as steps see it: an object comes with its attributes and directories, and cannot be removed while a
/// link points to it.
struct Fake {
    place: tempfile::TempDir,
    tree: Tree,
    /// The path on which steps fail.
    broken: Option<String>,
    /// The ports at which a sweep links the subsystem, each right before an attempt to remove the subsystem.
    sweeps: RefCell<Vec<u16>>,
}

fn attributes(path: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["subsystems", _] => (
            &["attr_allow_any_host", "attr_serial", "attr_model"],
            &["namespaces", "allowed_hosts"],
        ),
        ["subsystems", _, "namespaces", _] => (
            &["device_path", "device_uuid", "device_nguid", "enable"],
            &[],
        ),
        ["hosts", _] => (&["dhchap_key", "dhchap_ctrl_key"], &[]),
        ["ports", _] => (&[], &["subsystems"]),
        _ => (&[], &[]),
    }
}

impl Fake {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for name in ["subsystems", "hosts", "ports"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        let tree = Tree::new(place.path());
        let fake = Self {
            place,
            tree,
            broken: None,
            sweeps: RefCell::default(),
        };
        fake.mkdir("ports/1").unwrap();
        fake.mkdir("ports/2").unwrap();
        fake
    }

    fn check(&self, path: &str) -> Result<(), ObjectError> {
        match &self.broken {
            Some(broken) if broken == path => Err(ObjectError::new("made to fail")),
            _ => Ok(()),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// Every path, sorted; files with their text.
    fn picture(&self) -> Vec<String> {
        let mut found = Vec::new();
        gather(self.place.path(), &mut found);
        found.sort();
        found
    }
}

fn gather(place: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            gather(&path, found);
        }
        let text = kind.is_file().then(|| fs::read_to_string(&path).unwrap());
        found.push(format!("{} {text:?}", path.display()));
    }
}

impl Objects for Fake {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn write(&self, path: &str, value: &str) -> Result<(), ObjectError> {
        self.check(path)?;
        Objects::write(&self.tree, path, value)
    }

    fn write_secret(&self, path: &str, value: &str) -> Result<(), ObjectError> {
        let mode = fs::metadata(self.at(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
        self.check(path)?;
        Objects::write_secret(&self.tree, path, value)
    }

    fn mkdir(&self, path: &str) -> Result<(), ObjectError> {
        self.check(path)?;
        Objects::mkdir(&self.tree, path)?;
        let (files, directories) = attributes(path);
        for name in files {
            let at = self.at(path).join(name);
            fs::write(&at, "0\n").unwrap();
            fs::set_permissions(&at, fs::Permissions::from_mode(0o644)).unwrap();
        }
        for name in directories {
            fs::create_dir(self.at(path).join(name)).unwrap();
        }
        Ok(())
    }

    fn rmdir(&self, path: &str) -> Result<(), ObjectError> {
        let target = self.at(path);
        let is_swept = path == names::subsystem_path(SUBSYSTEM);
        if let Some(port) = self.sweeps.borrow_mut().pop_if(|_| is_swept) {
            self.symlink(path, &port_link_path(port, SUBSYSTEM))?;
        }
        let linked = self.picture().iter().any(|line| {
            let link = line.split(' ').next().unwrap();
            fs::read_link(link).is_ok_and(|to| to == target)
        });
        if linked {
            return Err(ObjectError {
                errno: Some(libc::EBUSY),
                ..ObjectError::new(format_args!("{path} is linked to"))
            });
        }
        let (files, directories) = attributes(path);
        for name in directories {
            fs::remove_dir(target.join(name)).map_err(ObjectError::new)?;
        }
        for name in files {
            fs::remove_file(target.join(name)).unwrap();
        }
        fs::remove_dir(target).map_err(ObjectError::new)
    }

    fn symlink(&self, target: &str, at: &str) -> Result<(), ObjectError> {
        self.check(at)?;
        Objects::symlink(&self.tree, target, at)
    }

    fn unlink(&self, path: &str) -> Result<(), ObjectError> {
        Objects::unlink(&self.tree, path)
    }

    fn remove_namespace(&self, path: &str) -> Result<(), ObjectError> {
        self.rmdir(path)
    }

    fn read_once(&self, volume: &Path) -> Result<(), ObjectError> {
        self.check(&volume.display().to_string())
    }
}

fn credential() -> Credential {
    let mut all = Credentials::open(&[], Arc::new(Disk::default())).unwrap();
    let terms = BlockTerms {
        mutual_auth: true,
        ..BlockTerms::default()
    };
    all.assign(LeaseId(1), "ann", &terms, |_| Ok(false))
        .unwrap()
        .credential
}

fn steps(credential: &Credential) -> Vec<Step> {
    let volume = PathBuf::from("/dev/volume");
    let mut steps = plan::export(
        LeaseId(1),
        SUBSYSTEM,
        volume,
        "/dev/volume",
        MARK,
        credential,
    );
    steps.extend(plan::links(SUBSYSTEM, credential.host_nqn.as_str(), [1, 2]));
    steps
}

/// The path or volume that a step is about.
fn subject(step: &Step) -> String {
    match &step.action {
        Action::Object(path) | Action::Namespace(path) | Action::Attribute(path, _) => path.clone(),
        Action::Link { at, .. } => at.clone(),
        Action::Readable { volume, .. } => volume.display().to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_prefix_undone_leaves_the_tree_as_it_was(prefix in 0_usize..=17) {
        let credential = credential();
        let fake = Fake::new();
        let before = fake.picture();
        let mut run = Run::new(&fake);
        run.take_all(&steps(&credential)[..prefix]).unwrap();
        prop_assert!(prefix == 0 || fake.picture() != before);
        run.undo().unwrap();
        prop_assert_eq!(fake.picture(), before);
    }

    #[test]
    fn a_step_that_fails_leaves_nothing_of_those_before_it(at in 0_usize..17) {
        let credential = credential();
        let all = steps(&credential);
        let mut fake = Fake::new();
        let before = fake.picture();
        // An attribute that already has the wanted value is not written, so it cannot fail.
        prop_assume!(all[at].name != "allow_any_host");
        fake.broken = Some(subject(&all[at]));
        let mut run = Run::new(&fake);
        let failed = run.take_all(&all).unwrap_err();
        prop_assert_eq!(failed.step, all[at].name);
        run.undo().unwrap();
        prop_assert_eq!(fake.picture(), before);
    }

    #[test]
    fn what_was_there_before_is_completed_and_not_undone(prefix in 0_usize..=17) {
        let credential = credential();
        let all = steps(&credential);
        let fake = Fake::new();
        Run::new(&fake).take_all(&all[..prefix]).unwrap();
        let objects = |fake: &Fake| -> Vec<String> {
            let lines = fake.picture().into_iter();
            lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        let before = objects(&fake);
        let mut run = Run::new(&fake);
        run.take_all(&all).unwrap();
        run.undo().unwrap();
        prop_assert_eq!(objects(&fake), before);
    }
}

#[test]
fn an_export_that_a_cut_unlinks_and_sweeps_meanwhile_is_undone() {
    let all = steps(&credential());
    let fake = Fake::new();
    let before = fake.picture();
    let mut run = Run::new(&fake);
    run.take_all(&all).unwrap();
    for step in all.iter().filter(|step| step.name == "link port") {
        fake.unlink(&subject(step)).unwrap();
    }
    *fake.sweeps.borrow_mut() = vec![2, 1];
    run.undo().unwrap();
    assert_eq!(fake.picture(), before);
}

#[test]
fn a_subsystem_that_stays_linked_is_not_tried_for_ever() {
    let fake = Fake::new();
    let path = names::subsystem_path(SUBSYSTEM);
    fake.mkdir(&path).unwrap();
    *fake.sweeps.borrow_mut() = vec![1; 9];
    let busy = remove_swept(&fake, &path).unwrap_err();
    assert_eq!(busy.errno, Some(libc::EBUSY));
}

#[test]
fn a_whole_export_taken_again_changes_nothing() {
    let credential = credential();
    let all = steps(&credential);
    let mut fake = Fake::new();
    Run::new(&fake).take_all(&all).unwrap();
    let whole = fake.picture();
    // The device may be in use and stuck, so it is not read again.
    fake.broken = Some("/dev/volume".to_owned());
    let mut again = Run::new(&fake);
    again.take_all(&all).unwrap();
    again.undo().unwrap();
    assert_eq!(fake.picture(), whole);
}

#[test]
fn nobody_can_connect_before_the_last_steps() {
    let all = steps(&credential());
    let names: Vec<_> = all.iter().map(|step| step.name).collect();
    let place = |wanted: &str| names.iter().position(|name| *name == wanted).unwrap();
    assert_eq!(names[names.len() - 2..], ["link port", "link port"]);
    assert!(place("read volume") < place("namespace"));
    assert!(place("mark host") < place("host"));
    assert!(place("dhchap_key") < place("allow host"));
    assert!(names.iter().all(|name| steps::STEPS.contains(name)));
}

#[test]
fn no_error_and_no_plan_shows_a_key() {
    let credential = credential();
    let mut fake = Fake::new();
    fake.broken = Some(format!("hosts/{}/dhchap_key", credential.host_nqn));
    let all = steps(&credential);
    let failed = Run::new(&fake).take_all(&all).unwrap_err();
    let shown = format!("{failed:?} {all:?}");
    assert!(!shown.contains(credential.secret.reveal()), "{shown}");
}
