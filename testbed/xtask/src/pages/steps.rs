//! Steps after which tests kill the daemon: their numbers in the pages, and the lists of the suites.

use super::{none_wrong, read, repository};
use std::process::Command;

/// Pages that contain numbers of steps.
const PAGES: [&str; 2] = ["docs/evidence.md", "docs/testing.md"];

/// A number of steps in a page names its lists: "23 steps (`host/cpu/src/steps.rs`)", or several lists, whose sum it
/// is.
#[test]
fn numbers_of_steps_are_those_of_the_code() {
    let mut wrong = Vec::new();
    for page in PAGES {
        let text = read(page);
        for (index, line) in text.lines().enumerate() {
            let mut rest = line;
            while let Some((before, after)) = rest.split_once(" steps") {
                rest = after;
                let number = before.rsplit(' ').next().unwrap();
                let Ok(number) = number.parse::<usize>() else {
                    continue;
                };
                if let Some(why) = refuse(number, after) {
                    wrong.push(format!("{page}:{}: {number} steps{why}", index + 1));
                }
            }
        }
    }
    none_wrong(&wrong);
}

/// The reason why the text after "NUMBER steps" does not name lists with this many steps.
fn refuse(number: usize, after: &str) -> Option<String> {
    let Some(lists) = after
        .strip_prefix(" (`")
        .and_then(|it| it.split(')').next())
    else {
        return Some(", of no list that is named".to_owned());
    };
    let lists = lists.split('`').filter(|it| it.contains('/'));
    let counted: usize = lists.map(|list| steps(&read(list)).len()).sum();
    (counted != number).then(|| format!(", which are {counted}"))
}

/// The names in the list `STEPS` of a source file.
fn steps(source: &str) -> Vec<&str> {
    let list = source
        .split("STEPS: &[&str] = &[")
        .nth(1)
        .expect("a list STEPS");
    let list = list.split("];").next().unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

#[test]
fn suites_go_through_every_step_or_say_why_not() {
    let program = format!("{}/steps.py", crate::suites::GUEST_DIRECTORY);
    let output = Command::new("python3")
        .arg(repository().join(program))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
