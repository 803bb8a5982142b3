//! The shell commands in README.md and docs/ are read by a shell, which runs nothing. What the programs of this project
//! take is checked by their own tests.

use super::{files, none_wrong, repository};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn every_shell_block_can_be_read_by_a_shell() {
    let mut pages = files("docs", ".md");
    pages.push(repository().join("README.md"));
    let (mut blocks, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let shown = page.strip_prefix(repository()).unwrap().display();
        for (line, block) in shell_blocks(&text) {
            blocks += 1;
            let why = refused(&block);
            wrong.extend(why.map(|why| format!("{shown}:{line}: {why}")));
        }
    }
    assert!(blocks > 30, "{blocks} blocks");
    none_wrong(&wrong);
}

/// The fenced blocks of language `sh`, each with the line of its fence.
fn shell_blocks(text: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut lines) = (Vec::new(), text.lines().enumerate());
    while let Some((index, line)) = lines.next() {
        if line.trim_start() == "```sh" {
            let block = lines.by_ref().take_while(|(_, it)| it.trim() != "```");
            let block: Vec<&str> = block.map(|(_, line)| line).collect();
            blocks.push((index + 1, block.join("\n") + "\n"));
        }
    }
    blocks
}

/// What the shell has against it.
fn refused(block: &str) -> Option<String> {
    let mut shell = Command::new("sh")
        .arg("-n")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(block.as_bytes())
        .unwrap();
    let output = shell.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_block_with_an_open_quote_is_refused() {
    let blocks = shell_blocks("a\n```sh\necho \"a\n```\n```toml\nb = '\n```\n");
    assert_eq!(blocks, [(2, "echo \"a\n".to_owned())]);
    assert!(refused(&blocks[0].1).is_some());
    assert_eq!(refused("echo a | cat > /dev/null &\n"), None);
}
