//! Tests the trial of a worker's isolation.

use fabricbios_gpu::{Libraries, worker::Trial};
use nix::unistd::geteuid;

use crate::lab::{Lab, failure};

#[test]
fn root_can_shut_workers_in_and_others_cannot() {
    let lab = Lab::new();
    let tried = lab.call(&Trial {
        libraries: Libraries::default(),
    });
    if geteuid().is_root() {
        tried.unwrap();
        // The next call runs in a new process.
        assert_eq!(lab.discover().devices.len(), 2);
    } else {
        let why = failure(tried);
        assert!(why.contains("no user of its own"), "{why}");
    }
}
