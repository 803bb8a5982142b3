//! The rooms, which are the top-level folders: their pages, their drawing, and the uses between them.

use super::{none_wrong, read, repository};
use crate::packages::{Package, Packages};
use fabricbios_testbed::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// The source of the drawing.
const SOURCE: &str = "docs/rooms.txt";

/// The source's rows of rooms, from top to bottom, and its arrows.
struct Drawing {
    rows: Vec<Vec<String>>,
    arrows: BTreeSet<(String, String)>,
}

impl Drawing {
    fn read() -> Self {
        let text = read(SOURCE);
        let lines = text
            .lines()
            .filter(|it| !it.is_empty() && !it.starts_with('#'));
        let (arrows, rows): (Vec<&str>, Vec<&str>) = lines.partition(|it| it.contains(" > "));
        let name = |text: &str| text.split(':').next().unwrap().trim().to_owned();
        let arrow = |it: &&str| {
            it.split_once(" > ")
                .map(|(from, to)| (from.into(), to.into()))
        };
        Self {
            rows: rows
                .iter()
                .map(|row| row.split('|').map(name).collect())
                .collect(),
            arrows: arrows.iter().filter_map(arrow).collect(),
        }
    }

    fn row(&self, room: &str) -> Option<usize> {
        self.rows
            .iter()
            .position(|row| row.iter().any(|it| it == room))
    }
}

/// The page of each room.
pub(super) fn pages() -> Vec<PathBuf> {
    let rooms = Drawing::read().rows.concat().into_iter();
    rooms.map(|room| page(&room)).collect()
}

fn page(room: &str) -> PathBuf {
    repository().join(room).join("README.md")
}

fn packages() -> Packages {
    Packages::read(&Layout::new(repository())).unwrap()
}

/// The room of a package.
fn room(package: &Package) -> String {
    let first = package.folder.components().next().unwrap();
    first.as_os_str().to_str().unwrap().to_owned()
}

/// Each pair of rooms in which the first uses the second, with a package that does so.
fn uses() -> BTreeMap<(String, String), String> {
    let packages = packages();
    let mut uses = BTreeMap::new();
    for package in &packages.0 {
        let used = package.uses.iter().filter_map(|it| packages.named(it));
        for other in used.filter(|other| room(other) != room(package)) {
            uses.insert((room(package), room(other)), package.name.clone());
        }
    }
    uses
}

#[test]
fn every_room_has_a_page_and_a_line_of_the_table() {
    let (drawing, table) = (Drawing::read(), read("docs/architecture.md"));
    let mut rooms: BTreeSet<String> = drawing.rows.concat().into_iter().collect();
    rooms.extend(packages().0.iter().map(room));
    let mut wrong = Vec::new();
    for room in rooms {
        if drawing.row(&room).is_none() {
            wrong.push(format!("{SOURCE} has no {room}"));
        }
        if !table.contains(&format!("\n| `{room}/` | ")) {
            wrong.push(format!("the table of docs/architecture.md has no {room}"));
        }
        if !page(&room).is_file() {
            wrong.push(format!("{room} has no README.md"));
        }
    }
    none_wrong(&wrong);
}

#[test]
fn a_room_uses_only_rooms_below_it() {
    let drawing = Drawing::read();
    let uses = uses();
    let upwards = uses
        .iter()
        .filter(|((room, other), _)| drawing.row(room) >= drawing.row(other));
    let wrong: Vec<String> = upwards
        .map(|((room, other), package)| format!("{package}, of {room}, uses {other}"))
        .collect();
    none_wrong(&wrong);
    // An arrow that follows from other arrows is not drawn.
    let implied = |(room, other): &(String, String)| {
        let mut waiting: Vec<&str> = uses
            .keys()
            .filter(|(from, to)| from == room && to != other)
            .map(|(_, to)| to.as_str())
            .collect();
        while let Some(next) = waiting.pop() {
            if next == other {
                return true;
            }
            let more = uses.keys().filter(|(from, _)| from == next);
            waiting.extend(more.map(|(_, to)| to.as_str()));
        }
        false
    };
    let drawn = uses.keys().filter(|it| !implied(it)).cloned().collect();
    assert_eq!(drawing.arrows, drawn, "the arrows of {SOURCE}");
}

#[test]
fn the_drawings_are_made_from_their_sources() {
    for (source, drawing) in [
        (SOURCE, "docs/rooms.svg"),
        ("docs/node.txt", "docs/node.svg"),
    ] {
        let output = Command::new("python3")
            .args(["testbed/drawing.py", source])
            .current_dir(repository())
            .output()
            .unwrap();
        assert!(
            String::from_utf8_lossy(&output.stdout) == read(drawing),
            "python3 testbed/drawing.py {source} > {drawing} makes it anew: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
