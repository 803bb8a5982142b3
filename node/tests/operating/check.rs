//! `fabricbiosd check`.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    process::{Command, Output},
    time::SystemTime,
};

use fabricbios_fabric::FabricDirectory;
use fabricbios_wire::Request;
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};

use crate::{both_go_on, daemon::*, keeping, lease_both};

/// All files in the place, with their bytes.
fn tree(place: &Place) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![place.at("")]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => left.push(path.clone()),
                false => {
                    let bytes = fs::read(&path).expect("a file");
                    found.insert(path, bytes);
                    continue;
                }
            }
            found.insert(path, Vec::new());
        }
    }
    found
}

/// Runs `check` with these settings, and asserts that it changes no file. Returns exit status and output.
fn check(place: &Place, words: &[&str]) -> (Option<i32>, String) {
    let state = format!("--state-dir={}", place.text("state"));
    let before = tree(place);
    let Output { status, stdout, .. } = place.run(&[&["check", &state], words].concat());
    assert_eq!(tree(place), before, "{words:?}");
    (status.code(), String::from_utf8_lossy(&stdout).into_owned())
}

#[test]
fn settings_with_which_a_start_works_are_good_before_the_first_start() {
    let place = Place::new();
    let words = [place.memory(), place.pool()].concat();
    let file = place.text("node.toml");
    fs::write(&file, "listen = \"127.0.0.1:0\"\nauto-detect = true").expect("a file");
    let config = format!("--config={file}");
    let words: Vec<&str> = words.iter().map(String::as_str).chain([&*config]).collect();
    let (status, said) = check(&place, &words);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("nothing was found that would make a start fail"),
        "{said}"
    );
}

#[test]
fn what_a_start_would_refuse_or_lack_is_named() {
    let place = Place::new();
    let foreign = place.text("pool/.fabricbios-pool");
    let pool = format!("--block-pool={}", place.text("pool"));
    fs::write(&foreign, "something else").expect("a file");
    let nowhere = format!("--block-pool={}", place.text("nowhere"));
    let arena = place.text("shared");
    fs::write(&arena, "").expect("a file");
    fs::set_permissions(&arena, Permissions::from_mode(0o644)).expect("for all to read");
    let mem_file = format!("--mem-file={arena}");
    let socket = format!("--local-socket={}/local.sock", place.text("pool"));
    let key = place.text("key.pem");
    fs::write(&key, "a key").expect("a file");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("a private file");
    let (in_key, far_in_key) = (
        format!("--mem-file={key}"),
        format!("--mem-arena=far=1MiB,file={key}"),
    );
    let mem_arena = format!("--mem-arena=far=1MiB,file={arena}");
    for (words, expected) in [
        (
            &["--listen=203.0.113.7:5701"][..],
            "lacks: --listen 203.0.113.7:5701: no interface",
        ),
        (
            &["--mem-bytes=1000TiB", "--rdma-device=none"],
            "lacks: --mem-bytes",
        ),
        (
            &["--mem-arena=far=1000TiB", "--mem-bytes=1MiB"],
            "lacks: --mem-bytes 1048576, --mem-arena far: ",
        ),
        (
            &["--mem-arena=far=1MiB,numa-node=4000000000"],
            "lacks: --mem-arena far: numa-node=4000000000",
        ),
        (
            &["--mem-bytes=1MiB", &mem_arena],
            "refused: --mem-arena far: ",
        ),
        (
            &["--mem-bytes=1MiB", "--rdma-device=nosuch"],
            "lacks: --rdma-device nosuch: this machine has no such",
        ),
        (
            &["--mem-bytes=1MiB", "--rdma-device=none", &mem_file],
            "refused: --mem-file",
        ),
        (
            &["--mem-bytes=1MiB", &in_key],
            "key.pem: it has data that is not leased memory",
        ),
        (
            &[&far_in_key],
            "key.pem: it has data that is not leased memory",
        ),
        (&[&nowhere], "make the directory, or mount its disk"),
        (&[&pool], "no marker of a pool"),
        (
            &["--macvlan-parent=nosuch0"],
            "lacks: --macvlan-parent nosuch0: there is no such interface",
        ),
        (
            &["--gpu-share-mode=exclusive"],
            "refused: --gpu-share-mode without --gpus",
        ),
        (
            &["--local-socket=relative"],
            "refused: --local-socket relative: the path is not absolute",
        ),
        // The directory `pool` has mode 0700.
        (
            &[&socket, "--tenant-uid=blue=1000"],
            "pool has mode 0700, so that no tenant reaches the socket: chmod 755",
        ),
    ] {
        let (status, said) = check(&place, words);
        assert_eq!(status, Some(1), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        assert!(
            said.contains("a start with these settings would fail"),
            "{said}"
        );
    }
}

#[test]
fn a_pool_that_does_not_answer_holds_up_no_check() {
    let (place, other) = (Place::new(), Place::new());
    // Opening it waits for a writer.
    mkfifo(&other.at("hangs"), Mode::S_IRWXU).expect("a FIFO");
    let pool = format!("--block-pool={}", other.text("hangs"));
    let (status, said) = check(&place, &[&pool]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("hangs: no progress for "), "{said}");
}

#[test]
#[ignore = "needs root"]
fn root_checks_as_the_owner_of_the_state_directory() {
    let place = Place::new();
    let open = |at: &str, mode| fs::set_permissions(place.at(at), Permissions::from_mode(mode));
    open("", 0o755).expect("for all to read");
    let state = place.at("state");
    fs::create_dir(&state).expect("a directory");
    open("state", 0o700).expect("a private directory");
    let config = place.text("node.toml");
    let text = format!(
        "state-dir = {:?}\nlisten = \"127.0.0.1:0\"",
        place.text("state")
    );
    fs::write(&config, text).expect("a file");
    let config = format!("--config={config}");
    chown(&state, Some(65_533), Some(65_532)).expect("root");
    let output = place.run(&["check", &config]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert!(told.contains("as user 65533, who owns "), "{told}");
    // What only root can read, the daemon cannot.
    open("node.toml", 0o600).expect("a private file");
    let (status, said) = check(&place, &[&config]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("node.toml: Permission denied"), "{said}");
    open("node.toml", 0o644).expect("for all to read");
    // A copy that root has put back.
    let key = place.at("state/node.identity");
    fs::write(&key, "").expect("a file");
    open("state/node.identity", 0o600).expect("a private file");
    chown(&key, Some(65_533), None).expect("root");
    chown(&state, Some(0), None).expect("root");
    let (status, said) = check(&place, &[&config]);
    let mends = format!("daemon of user 65533, `chown 65533 {}`;", state.display());
    assert!(status == Some(1) && said.contains(&mends), "{said}");
}

/// As systemd 257 gives it to the unit's user, by an ACL, which stat(2) shows as reading by the group.
#[test]
#[ignore = "needs root"]
fn an_identity_of_pages_is_a_credential_of_systemd_only_in_the_directory_of_credentials() {
    let place = Place::new();
    let open = |at: &str, mode| fs::set_permissions(place.at(at), Permissions::from_mode(mode));
    open("", 0o755).expect("for all to read");
    for at in ["state", "credentials"] {
        fs::create_dir(place.at(at)).expect("a directory");
    }
    let fabric = FabricDirectory::init(&place.at("fabric"), SystemTime::now()).expect("a fabric");
    fs::copy(fabric.scheduler_identity(), place.at("credentials/pages")).expect("a copy");
    for (at, owner, mode) in [
        ("state", 65_533, 0o700),
        ("credentials", 0, 0o550),
        ("credentials/pages", 0, 0o440),
    ] {
        chown(place.at(at), Some(owner), Some(65_532)).expect("root");
        open(at, mode).expect("its mode");
    }
    let pages = |credentials: &str| {
        let mut command = Command::new(PROGRAM);
        command.args([
            "check",
            "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0",
        ]);
        command.arg(format!("--state-dir={}", place.text("state")));
        command.arg(format!(
            "--metrics-identity={}",
            place.text("credentials/pages")
        ));
        command.env("CREDENTIALS_DIRECTORY", place.at(credentials));
        let output = command.output().expect("a program");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("as user 65533, who owns "), "{told}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = pages("credentials");
    assert!(!said.contains("--metrics-identity"), "{said}");
    let said = pages("fabric");
    assert!(said.contains("others can read it (mode 0440)"), "{said}");
}

#[test]
#[ignore = "needs root, or user namespaces"]
fn a_disk_without_room_for_the_record_of_a_start_is_named() {
    let place = Place::new();
    // A mount of its own for the check.
    let full = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-euc"]);
        let script = "mount -t tmpfs -o size=64k,mode=700 none \"$1\"; shift; exec \"$@\"";
        command
            .args([script, "sh", &place.text("pool")])
            .args(words);
        command.output().expect("util-linux")
    };
    for state in ["pool", "pool/made"] {
        let state = format!("--state-dir={}", place.text(state));
        let Output { status, stdout, .. } = full(&[PROGRAM, "check", &state]);
        let said = String::from_utf8_lossy(&stdout);
        assert_eq!(status.code(), Some(1), "{said}");
        let at = place.text("pool");
        let expected =
            format!("lacks: --state-dir {at}: its file system has 64 KiB left: make room");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_broken_empty_or_foreign_file_is_refused_with_its_path() {
    let place = Place::new();
    let file = place.text("node.toml");
    let config = format!("--config={file}");
    for (text, expected) in [
        (&b""[..], "there is no setting in it"),
        (
            b"cut-within-ms = 0",
            "line 1: cut-within-ms = 0: a whole number from 10 to 60000",
        ),
        (b"mem-byte = 1", "did you mean mem-bytes?"),
        (b"mem-bytes = ", "line 1"),
        (
            b"[package]\nname = \"x\"",
            "there is no setting \"package\"",
        ),
        (b"\x7fELF\xff\xfe", "no text file"),
    ] {
        fs::write(&file, text).expect("a file");
        let (status, said) = check(&place, &[&config]);
        assert_eq!(status, Some(1), "{said}");
        let begin = format!("refused: configuration file {file}: ");
        assert!(
            said.starts_with(&begin) && said.contains(expected),
            "{said}"
        );
    }
    let output = place.run(&["check", &format!("--state-dir={file}")]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is no directory"), "{said}");
    fs::remove_file(&file).expect("removed");
    let (status, said) = check(&place, &[&config]);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains(&file) && said.contains("No such file"),
        "{said}"
    );
}

#[test]
fn every_bad_line_of_a_file_is_told_in_one_run() {
    let place = Place::new();
    let file = place.text("node.toml");
    fs::write(
        &file,
        "cut-within-ms = 0\nlisten = \"127.0.0.1:0\"\nmem-byte = 1\nlease-secs-max = \"x\"",
    )
    .expect("a file");
    let (status, said) = check(&place, &[&format!("--config={file}")]);
    assert_eq!(status, Some(1), "{said}");
    let begin = format!("refused: configuration file {file}: line ");
    let lines: Vec<&str> = said
        .lines()
        .filter_map(|it| it.strip_prefix(&begin))
        .collect();
    let [first, second, third] = lines[..] else {
        panic!("{said}")
    };
    assert!(
        first.starts_with("1: cut-within-ms = 0: ") && first.contains("such as 1000"),
        "{first}"
    );
    assert!(second.starts_with("3: "), "{second}");
    assert!(third.starts_with("4: lease-secs-max = \"x\": "), "{third}");
}

#[test]
fn every_contradiction_is_told_in_a_line_of_its_own() {
    let words = ["--cpu-pids-max=9", "--gpu-share-mode=exclusive"];
    let (status, said) = check(&Place::new(), &words);
    assert_eq!(status, Some(1), "{said}");
    for without in [
        "--cpu-pids-max without --cpus",
        "--gpu-share-mode without --gpus",
    ] {
        let begin = format!("refused: {without}");
        assert!(said.lines().any(|it| it.starts_with(&begin)), "{said}");
    }
}

#[tokio::test]
async fn a_pool_that_a_start_would_withhold_is_called_so_and_what_to_do() {
    let place = Place::new();
    let words = keeping(&place);
    let daemon = place.start(&words);
    let leases = lease_both(&daemon, &place.admin()).await;
    daemon.end(Signal::SIGTERM);
    fs::rename(place.at("pool"), place.at("elsewhere")).expect("moved");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let pool = place.text("pool");
    let (status, said) = check(&place, &words);
    assert_eq!(status, Some(0), "{said}");
    for word in [
        &*format!("withheld: --block-pool {pool}: "),
        "No such file",
        &format!("--without-pool {pool}"),
        "nothing was found that would make a start fail",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // A missing pool that no run has offered makes the start fail.
    let nowhere = format!("--block-pool={}", place.text("nowhere"));
    let (status, said) = check(&place, &[&words[..], &[&nowhere]].concat());
    assert_eq!(status, Some(1), "{said}");
    let refused = format!("refused: --block-pool {}: ", place.text("nowhere"));
    assert!(said.contains(&refused), "{said}");
    // A start does what the check has reported.
    let owned: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
    let daemon = place.start(&owned);
    assert!(place.log().contains("withheld"), "{}", place.log());
    daemon.end(Signal::SIGTERM);
    fs::rename(place.at("elsewhere"), place.at("pool")).expect("moved");
    let (status, said) = check(&place, &words);
    assert_eq!(
        (status, said.contains("withheld")),
        (Some(0), false),
        "{said}"
    );
    both_go_on(&place.start(&owned), &place.admin(), &leases).await;
}

#[tokio::test]
async fn a_forgotten_pool_with_live_leases_is_refused_as_by_a_start() {
    let place = Place::new();
    let words = keeping(&place);
    let daemon = place.start(&words);
    lease_both(&daemon, &place.admin()).await;
    daemon.end(Signal::SIGTERM);
    let memory = place.memory();
    let alone: Vec<&str> = memory.iter().map(String::as_str).collect();
    let (status, said) = check(&place, &alone);
    assert_eq!(status, Some(1), "{said}");
    let pool = place.text("pool");
    let why = format!("the last run offered the pool {pool}, and 1 of its leases live");
    assert!(said.contains(&format!("refused: {why}")), "{said}");
    let without = format!("--without-pool={pool}");
    let (status, said) = check(&place, &[&alone[..], &[&without]].concat());
    assert_eq!(status, Some(0), "{said}");
    // The new path may hold the forgotten pool.
    fs::rename(place.at("pool"), place.at("moved")).expect("moved");
    let moved = format!("--block-pool={}", place.text("moved"));
    let (status, said) = check(&place, &[&alone[..], &[&moved]].concat());
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&format!("warning: {why}")), "{said}");
    fs::rename(place.at("moved"), place.at("pool")).expect("moved");
    let log = place.start_in_vain(&memory);
    assert!(log.contains(&why), "{log}");
}

#[tokio::test]
async fn a_damaged_journal_or_a_lost_node_identity_stops_a_start_and_the_check_says_so() {
    let place = Place::new();
    let owned = keeping(&place);
    let words: Vec<&str> = owned.iter().map(String::as_str).collect();
    let daemon = place.start(&owned);
    let leases = lease_both(&daemon, &place.admin()).await;
    daemon.end(Signal::SIGTERM);
    let journal = place.at("state/journal.redb");
    let whole = fs::read(&journal).expect("a journal");
    for damage in [&b""[..], b"no journal"] {
        fs::write(&journal, damage).expect("damaged");
        let (status, said) = check(&place, &words);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("refused: journal"), "{said}");
        assert!(said.contains("is damaged"), "{said}");
        place.start_in_vain(&owned);
    }
    fs::write(&journal, whole).expect("restored");
    fs::create_dir(place.at("aside")).expect("a directory");
    let lost = ["node.identity", "ca.pem", "admin.identity", "ca-key.pem"];
    for name in lost {
        let aside = place.at("aside").join(name);
        fs::rename(place.at("state").join(name), aside).expect("moved");
    }
    let (status, said) = check(&place, &words);
    let log = place.start_in_vain(&owned);
    for text in [&said, &log] {
        let why = "node.identity: missing, although a node was here before; restore the file";
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(status, Some(1), "{said}");
    for name in lost {
        let aside = place.at("aside").join(name);
        fs::rename(aside, place.at("state").join(name)).expect("moved");
    }
    both_go_on(&place.start(&owned), &place.admin(), &leases).await;
}

#[tokio::test]
async fn a_check_disturbs_no_daemon_and_says_that_there_is_one() {
    let place = Place::new();
    let words = [place.memory(), place.pool()].concat();
    let daemon = place.start(&words);
    let node = daemon.client(&place.admin()).await;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let state = format!("--state-dir={}", place.text("state"));
    let output = place.run(&[&["check", &state], &words[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("warning: a daemon runs on the state directory"),
        "{said}"
    );
    node.call_async(Request::Ping(0)).await.expect("an answer");
    drop(node);
    assert!(daemon.end(Signal::SIGTERM).success());

    let (status, said) = check(&place, &words);
    assert_eq!(
        (status, said.contains("a daemon runs")),
        (Some(0), false),
        "{said}"
    );
    fs::copy(
        place.at("state/admin.identity"),
        place.at("state/node.identity"),
    )
    .expect("copied");
    let (status, said) = check(&place, &words);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("node.identity: the file is no identity of a node"),
        "{said}"
    );
}
