//! Paths and sections in README.md, docs/ and the pages of the rooms.

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
            let sections = sections_of_links(line, &page).into_iter();
            let missing = sections.filter(|(path, section)| !has_section(path, section));
            wrong.extend(missing.map(|(path, section)| {
                format!(
                    "{shown}:{}: {} has no #{section}",
                    index + 1,
                    path.display()
                )
            }));
        }
    }
    none_wrong(&wrong);
}

fn links(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://"))
}

/// The sections of pages that links name.
fn sections_of_links<'a>(line: &'a str, page: &Path) -> Vec<(PathBuf, &'a str)> {
    let named = links(line).filter_map(|link| link.split_once('#'));
    let named = named.map(|(path, section)| match path {
        "" => (page.to_owned(), section),
        _ => (page.with_file_name(path), section),
    });
    named
        .filter(|(path, _)| path.extension().is_some_and(|it| it == "md"))
        .collect()
}

/// Whether a heading of the page has this name, as GitHub makes it: small letters, `-` for a space, and no other sign.
fn has_section(page: &Path, section: &str) -> bool {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut names = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
        kept.map(|it| if it == ' ' { '-' } else { it })
            .collect::<String>()
    });
    names.any(|name| name == section)
}

/// The targets of relative links, and code that begins with a directory of this checkout.
fn paths(line: &str, page: &Path) -> Vec<PathBuf> {
    let links = links(line).filter(|link| !link.starts_with('#'));
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
    let page = repository().join("docs/operate.md");
    let named = sections_of_links("[a](#fences), [b](sizing.md#none), [c](https://d#e)", &page);
    let has: Vec<bool> = named
        .iter()
        .map(|(path, it)| has_section(path, it))
        .collect();
    assert_eq!(has, [true, false]);
}
