use super::*;

fn tree() -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/mtu"), "1500\n").unwrap();
    fs::write(dir.path().join("d/cpus"), "0-2,5\n").unwrap();
    let tree = Tree::new(dir.path());
    (dir, tree)
}

fn said<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn reads_text_numbers_lists_and_directories() {
    let (_dir, tree) = tree();
    assert_eq!(tree.read("d/mtu").unwrap(), "1500");
    assert_eq!(tree.read_as::<u64>("d/mtu").unwrap(), 1500);
    assert_eq!(tree.read_list("d/cpus").unwrap(), [0, 1, 2, 5]);
    assert_eq!(tree.list("d").unwrap(), ["cpus", "mtu"]);
    assert_eq!(tree.list("").unwrap(), ["d"]);
}

#[test]
fn a_path_that_leaves_the_root_is_refused_by_every_call() {
    let (_dir, tree) = tree();
    for path in ["..", "d/../../x", "/etc/passwd", "./d"] {
        let refusal = "path must be relative and without `..`";
        assert!(said(tree.read(path)).ends_with(refusal), "{path}");
        assert!(said(tree.write(path, "1")).ends_with(refusal), "{path}");
        assert!(said(tree.mkdir(path)).ends_with(refusal), "{path}");
        assert!(said(tree.symlink(path, "d/l")).ends_with(refusal), "{path}");
        assert!(said(tree.exists(path)).ends_with(refusal), "{path}");
    }
}

#[test]
fn errors_carry_operation_path_value_and_errno() {
    let (dir, tree) = tree();
    let root = dir.path().display();
    let failed = tree.write("d/enable", "1").unwrap_err();
    assert_eq!(
        failed.to_string(),
        format!("write `1` to {root}/d/enable: No such file or directory (os error 2)")
    );
    assert!(failed.is_absent() && failed.errno() == Some(2));
    assert!(!dir.path().join("d/enable").exists());
    assert_eq!(tree.rmdir("d").unwrap_err().errno(), Some(39));
    assert_eq!(
        said(tree.read_as::<u8>("d/mtu")),
        format!("read {root}/d/mtu: expected u8, got `1500`")
    );
    let secret = said(tree.write_secret("d/dhchap_key", "DHHC-1:00:xyz"));
    assert!(
        secret.contains("write a secret to") && !secret.contains("xyz"),
        "{secret}"
    );
}

#[test]
fn a_secret_is_compared_and_not_shown() {
    let (_dir, tree) = tree();
    tree.write_secret("d/mtu", "DHHC-1:00:xyz:").unwrap();
    assert!(tree.holds_secret("d/mtu", "DHHC-1:00:xyz:").unwrap());
    assert!(!tree.holds_secret("d/mtu", "DHHC-1:00:xy").unwrap());
    assert!(tree.holds_secret("d/none", "").unwrap_err().is_absent());
}

#[test]
fn objects_and_links_are_made_and_removed() {
    let (dir, tree) = tree();
    tree.mkdir("o").unwrap();
    tree.symlink("d", "o/l").unwrap();
    assert_eq!(
        fs::read_link(dir.path().join("o/l")).unwrap(),
        dir.path().join("d")
    );
    assert_eq!(tree.link_name("o/l").unwrap(), "d");
    assert!(said(tree.symlink("d", "o/l")).contains("File exists"));
    tree.unlink("o/l").unwrap();
    assert!(!tree.exists("o/l").unwrap() && !tree.exists("d/mtu/below").unwrap());
    tree.rmdir("o").unwrap();
    assert!(!tree.exists("o").unwrap());
}

#[test]
fn a_read_is_bounded() {
    let refused = said(Tree::new("/dev").read("zero"));
    assert!(refused.ends_with("longer than 1048576 bytes"), "{refused}");
    let (dir, tree) = tree();
    fs::write(dir.path().join("long"), "one\ntwo\nthree\n").unwrap();
    assert_eq!(tree.read_head("long", 10).unwrap(), "one\ntwo");
    assert_eq!(tree.read_head("long", 99).unwrap(), "one\ntwo\nthree");
}

#[test]
fn malformed_lists_are_refused() {
    assert_eq!(parse_list(""), Some(vec![]));
    assert_eq!(parse_list("7"), Some(vec![7]));
    for text in [
        "a",
        "1,",
        ",1",
        "3-1",
        "1,1",
        "2,1",
        "0-4294967295",
        "0-65536",
        "+1",
        "1 2",
        "-",
    ] {
        assert_eq!(parse_list(text), None, "{text}");
    }
}
