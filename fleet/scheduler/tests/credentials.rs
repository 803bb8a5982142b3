//! Identities that systemd gives to the scheduler's unit. Only root can make files of root.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
    time::SystemTime,
};

use fabricbios_fabric::FabricDirectory;

/// Starts the program with both identities in this directory. Returns its first line, and what it says if it ends.
fn run(at: &Path, credentials: Option<&Path>) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    command.args(["--listen=127.0.0.1:0", "--etcd=https://127.0.0.1:1"]);
    command.arg("--identity").arg(at.join("scheduler.identity"));
    command.arg("--etcd-identity").arg(at.join("etcd.identity"));
    command.env_remove("CREDENTIALS_DIRECTORY");
    command.envs(credentials.map(|it| ("CREDENTIALS_DIRECTORY", it)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut line, mut said) = (String::new(), String::new());
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    child.kill().unwrap();
    let mut errors = child.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    (line, said)
}

/// systemd 257 keeps credentials on a tmpfs, gives them to the unit's user by an ACL, and stat(2) shows reading by the group.
#[test]
#[ignore = "needs root"]
fn identities_that_systemd_shows_to_a_group_are_used_and_others_are_not() {
    let place = tempfile::tempdir().unwrap();
    let fabric = FabricDirectory::init(&place.path().join("fabric"), SystemTime::now()).unwrap();
    let at = place.path().join("credentials");
    fs::create_dir(&at).unwrap();
    let open = |name: &str, mode| {
        fs::set_permissions(at.join(name), Permissions::from_mode(mode)).unwrap();
    };
    for name in ["scheduler.identity", "etcd.identity"] {
        fs::copy(fabric.scheduler_identity(), at.join(name)).unwrap();
        open(name, 0o440);
    }
    open("", 0o550);
    let (ready, said) = run(&at, Some(&at));
    assert!(ready.starts_with("READY "), "{ready}{said}");
    for name in ["scheduler.identity", "etcd.identity"] {
        let (ready, said) = run(&at, None);
        assert_eq!(ready, "", "{said}");
        let refused = format!(
            "{}: others can read it (mode 0440)",
            at.join(name).display()
        );
        assert!(said.contains(&refused), "{said}");
        open(name, 0o400);
    }
    // Not put there by systemd.
    open("etcd.identity", 0o440);
    chown(at.join("etcd.identity"), Some(12_345), None).unwrap();
    let (ready, said) = run(&at, Some(&at));
    assert_eq!(ready, "", "{said}");
    assert!(said.contains("belongs to user 12345"), "{said}");
}
