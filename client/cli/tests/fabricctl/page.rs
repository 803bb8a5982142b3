//! The address of the page of the node of this machine.

use std::{fs, process::Command};

#[test]
fn page_prints_what_the_daemon_wrote_and_says_what_is_missing() {
    let state = tempfile::tempdir().unwrap();
    let page = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
        command.env_clear().args(["page", "--state-dir"]);
        command.arg(state.path()).output().unwrap()
    };
    let none = page();
    assert_eq!(none.status.code(), Some(1));
    let why = String::from_utf8(none.stderr).unwrap();
    assert!(
        why.contains("page.url") && why.contains("--metrics-listen"),
        "{why}"
    );
    let url = "http://127.0.0.1:5780/?token=00ff\n";
    fs::write(state.path().join("page.url"), url).unwrap();
    let found = page();
    assert!(found.status.success(), "{found:?}");
    assert_eq!(String::from_utf8(found.stdout).unwrap(), url);
}
