//! Paths in README.md, docs/ and the pages of the rooms.

use super::{code_spans, files, none_wrong, repository};
use std::path::{Path, PathBuf};

#[test]
fn every_path_exists() {
    let mut pages = files("docs", ".md");
    pages.extend(super::rooms::pages());
    let at_root = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ];
    pages.extend(at_root.map(|it| repository().join(it)));
    let mut wrong = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let shown = page.strip_prefix(repository()).unwrap().display();
        for (index, line) in text.lines().enumerate() {
            let missing = paths(line, &page).into_iter().filter(|path| !path.exists());
            wrong.extend(missing.map(|path| format!("{shown}:{}: {}", index + 1, path.display())));
        }
    }
    none_wrong(&wrong);
}

/// The targets of relative links, and code that begins with a directory of this checkout.
fn paths(line: &str, page: &Path) -> Vec<PathBuf> {
    let links = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let links = links.filter(|link| !link.contains("://") && !link.starts_with('#'));
    let links = links.map(|link| page.with_file_name(link.split('#').next().unwrap()));
    let code = code_spans(line).into_iter().map(|(_, code)| code);
    let code = code.filter(|code| is_path(code)).map(|code| {
        let path = code.split(':').next().unwrap();
        repository().join(path)
    });
    links.chain(code).collect()
}

fn is_path(code: &str) -> bool {
    let plain = |it: char| it.is_ascii_alphanumeric() || "/._-:".contains(it);
    let first = code.split('/').next().unwrap();
    // NAME stands for any name.
    let outputs =
        code.contains("NAME") || first == "target" || first.is_empty() || first.starts_with('.');
    code.contains('/') && code.chars().all(plain) && !outputs && repository().join(first).is_dir()
}

#[test]
fn links_and_code_are_found_and_nothing_else() {
    let page = repository().join("docs/spec/page.md");
    let found = |line: &str| {
        let paths = paths(line, &page).into_iter();
        let shown = paths.map(|path| {
            path.strip_prefix(repository())
                .unwrap()
                .display()
                .to_string()
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        found("[a](other.md#part), [b](https://c/d) and [e](#f)"),
        ["docs/spec/other.md"]
    );
    assert_eq!(
        found("`node/src/none.rs:12`, `/run/a`, `target/debug/x`, `GET/PUT`, `cpu --x y/z`"),
        ["node/src/none.rs"]
    );
}
