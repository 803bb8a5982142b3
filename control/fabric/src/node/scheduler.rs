//! The identity of a scheduler: one file, which `fabricctl fabric init` or `fabricctl fabric add-scheduler` makes.

use std::{path::Path, time::SystemTime};

use fabricbios_wire::Role;

use super::{Fabric, damaged, member, read};
use crate::{FileProblem, IdentityError, private};

const REMEDY: &str = "name the file scheduler.identity that `fabricctl fabric init` has made, or one of `fabricctl fabric \
     add-scheduler`";

impl Fabric {
    /// Opens the identity of a scheduler. The file has the certificate, the key, and the certificate of the CA, as PEM.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, is of another role, its certificate is not valid now, another user can read
    /// it, or another user can write to its directory.
    pub fn open_scheduler(identity: &Path, now: SystemTime) -> Result<Self, IdentityError> {
        let bad = damaged(identity, REMEDY);
        let text = read(identity)?.ok_or_else(|| bad(FileProblem::Missing))?;
        private::check_file(identity)?;
        let scheduler = member(&text, Role::Scheduler).map_err(&bad)?;
        scheduler.certified.verify(now).map_err(&bad)?;
        Ok(Self {
            key: scheduler.key,
            id: scheduler.id,
            home: scheduler.certified.fabric,
            certified: vec![scheduler.certified],
            role: Role::Scheduler,
            ca: None,
            admin_identity: None,
            new: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

    use super::*;
    use crate::{Ca, FabricDirectory};

    fn open(path: &Path) -> Result<Fabric, IdentityError> {
        Fabric::open_scheduler(path, SystemTime::now())
    }

    #[test]
    fn the_identity_of_a_new_fabric_opens_as_its_scheduler() {
        let root = tempfile::tempdir().unwrap();
        let fabric = FabricDirectory::init(root.path(), SystemTime::now()).unwrap();
        let scheduler = open(&fabric.scheduler_identity()).unwrap();
        assert_eq!(
            (scheduler.role(), scheduler.id()),
            (Role::Scheduler, fabric.id())
        );
        let certified = &scheduler.certified()[0];
        assert_eq!(certified.ca, *fabric.ca().certificate());
        let peer = scheduler.peer(&certified.certificate).unwrap();
        assert_eq!((peer.key, peer.labels), (scheduler.node_id(), Vec::new()));
    }

    #[test]
    fn what_is_no_usable_identity_of_a_scheduler_is_refused_with_its_reason() {
        let root = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let fabric = FabricDirectory::init(root.path(), now).unwrap();
        let path = fabric.scheduler_identity();
        let text = fs::read_to_string(&path).unwrap();
        let refused = |at: &Path, word: &str| {
            let why = open(at).unwrap_err().to_string();
            assert!(
                why.contains(word) && why.contains(at.to_str().unwrap()),
                "{why}"
            );
        };
        refused(&fabric.admin_identity(), "no identity of a scheduler");
        refused(&root.path().join("none"), "missing");
        refused(root.path(), "directory");
        let others = Ca::generate(now).unwrap();
        let others = Ca::from_pem(&others).unwrap();
        let of_other_ca = text.replace(fabric.ca().certificate_pem(), others.certificate_pem());
        for (damaged, word) in [
            (&text[..text.len() / 2], "cut short"),
            ("rubbish", "private key"),
            (&of_other_ca, "not accepted"),
        ] {
            fs::write(&path, damaged).unwrap();
            refused(&path, word);
        }
        fs::write(&path, &text).unwrap();
        let century = Duration::from_secs(100 * 366 * 86_400);
        let late = Fabric::open_scheduler(&path, now + century).unwrap_err();
        assert!(late.to_string().contains("not accepted"), "{late}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        refused(&path, "others can read it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        open(&path).unwrap();
    }
}
