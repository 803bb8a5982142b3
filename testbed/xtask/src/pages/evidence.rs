//! The rows of docs/evidence.md.

use super::commands::Known;
use super::{code_spans, none_wrong, read};

const PAGE: &str = "docs/evidence.md";
const NOT_SHOWN: &str = "not shown";

/// A row of a table of promises.
struct Row {
    line: usize,
    rung: String,
    shown_by: String,
    date: String,
}

#[test]
fn every_row_names_its_rung_its_date_and_what_shows_it() {
    let page = read(PAGE);
    let (known, rungs) = (Known::read(), rungs(&page));
    let rows = rows(&page);
    assert!(rows.len() > 100, "{} rows", rows.len());
    let mut wrong = Vec::new();
    let mut before = Vec::new();
    for row in rows {
        let commands = commands(&row.shown_by, &before);
        let refused = commands.iter().filter_map(|command| command.refuse(&known));
        let reasons = refused.chain(row.refuse(&rungs, &commands));
        wrong.extend(reasons.map(|why| format!("{PAGE}:{}: {why}", row.line)));
        before = commands;
    }
    none_wrong(&wrong);
}

#[test]
fn measurements_name_commands_that_exist() {
    let (page, known) = (read(PAGE), Known::read());
    let mut wrong = Vec::new();
    let rows = tables(&page).filter(|(columns, ..)| {
        columns
            .last_chunk()
            .is_some_and(|[last, _]| *last == "command")
    });
    for (_, line, cells) in rows {
        let commands = code_spans(cells[cells.len() - 2])
            .into_iter()
            .map(|(_, code)| code);
        let refused = commands
            .filter(|it| it.starts_with("cargo "))
            .filter_map(|it| known.refuse(it));
        wrong.extend(refused.map(|why| format!("{PAGE}:{line}: {why}")));
    }
    none_wrong(&wrong);
}

/// The command that shows a row.
#[derive(Clone)]
enum Shown {
    Command(String),
    /// A section of a suite.
    Section {
        suite: String,
        section: String,
    },
}

impl Shown {
    fn refuse(&self, known: &Known) -> Option<String> {
        match self {
            Self::Command(command) => known
                .refuse(command)
                .map(|why| format!("`{command}`: {why}")),
            Self::Section { suite, section } => Known::refuse_section(suite, section),
        }
    }

    fn is_lab(&self) -> bool {
        let starts = [
            "lab:",
            "cargo xtask lab",
            "cargo xtask blktests",
            "cargo xtask fstests",
        ];
        matches!(self, Self::Command(it) if starts.iter().any(|start| it.starts_with(start)))
    }
}

/// The commands of a cell; `before` has the commands of the previous row, for "the same".
fn commands(cell: &str, before: &[Shown]) -> Vec<Shown> {
    let same = cell.starts_with("the same");
    let mut found = if same { before.to_vec() } else { Vec::new() };
    let (mut depth, mut suite) = (0i32, String::new());
    for (text, code) in code_spans(cell) {
        let count = |bracket| i32::try_from(text.matches(bracket).count()).unwrap();
        depth += count('(') - count(')');
        if depth > 0 {
            let (suite, section) = (suite.clone(), code.to_owned());
            found.push(Shown::Section { suite, section });
        } else {
            suite = code.to_owned();
            found.push(Shown::Command(code.to_owned()));
        }
    }
    found
}

impl Row {
    fn refuse(&self, rungs: &[String], commands: &[Shown]) -> Option<String> {
        let rung = self.rung.split(|it: char| !it.is_alphabetic()).next();
        let rung = rung.unwrap_or_default();
        if self.rung.starts_with(NOT_SHOWN) {
            return None;
        }
        if !rungs.iter().any(|it| it == rung) {
            return Some(format!("`{rung}` is no rung of the legend"));
        }
        if self.rung.contains("seeded") && !self.rung.contains("simulation") {
            return Some("a seeded simulation is not called one".to_owned());
        }
        let is_lab = self
            .rung
            .split(|it: char| !it.is_alphabetic())
            .any(|it| it == "lab");
        if is_lab != commands.iter().any(Shown::is_lab) {
            return Some("the rung lab and a command of the lab come together".to_owned());
        }
        if !is_date(&self.date) {
            return Some(format!("`{}` is no date", self.date));
        }
        let by_hand = self.rung.contains("by hand");
        (commands.is_empty() && !by_hand).then(|| "nothing shows it".to_owned())
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<Option<u32>> = text.split('-').map(|part| part.parse().ok()).collect();
    matches!(parts[..], [Some(2026..), Some(1..=12), Some(1..=31)])
}

/// The words of the legend.
fn rungs(page: &str) -> Vec<String> {
    let legend = page.split("\n\n").find(|it| it.starts_with("Rungs:"));
    let legend = legend.expect("a paragraph that begins with `Rungs:`");
    let parts: Vec<&str> = legend.split("**").collect();
    let words = parts.chunks_exact(2).map(|pair| pair[1].to_owned());
    words.collect()
}

fn rows(page: &str) -> Vec<Row> {
    let promises = tables(page).filter(|(columns, ..)| columns[1] == "promise");
    let rows = promises.map(|(columns, line, cells)| {
        let cell = |names: &[&str]| {
            let at = columns.iter().position(|column| names.contains(column));
            at.map(|at| cells[at].to_owned()).unwrap_or_default()
        };
        Row {
            line,
            rung: cell(&["rung", "lifecycle"]),
            shown_by: cell(&["shown by"]),
            date: cell(&["date"]),
        }
    });
    rows.collect()
}

/// The rows of all tables: the names of the columns, the number of the line, the cells.
fn tables(page: &str) -> impl Iterator<Item = (Vec<&str>, usize, Vec<&str>)> {
    let mut columns = Vec::new();
    page.lines().enumerate().filter_map(move |(index, line)| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            columns.clear();
        } else if columns.is_empty() {
            columns = cells;
        } else if !line.starts_with("|---") {
            assert_eq!(cells.len(), columns.len(), "{PAGE}:{}: cells", index + 1);
            return Some((columns.clone(), index + 1, cells));
        }
        None
    })
}

#[test]
fn a_row_without_rung_date_or_command_is_refused() {
    let known = Known::read();
    let why = |rung: &str, shown_by: &str, date: &str| {
        let page = format!(
            "| promise | rung | shown by | date |\n|---|---|---|---|\n| a | {rung} | {shown_by} | {date} |"
        );
        let row = rows(&page).remove(0);
        let commands = commands(&row.shown_by, &[]);
        let refused = commands.iter().find_map(|command| command.refuse(&known));
        refused.or_else(|| row.refuse(&["unit".into(), "lab".into()], &commands))
    };
    let test = "`-p fabricbios-lease --test model restarts::`";
    assert_eq!(why("unit", test, "2026-11-25"), None);
    assert_eq!(why("not shown yet", "", ""), None);
    assert!(why("node", test, "2026-11-25").unwrap().contains("no rung"));
    assert!(
        why("unit (seeded networks)", test, "2026-11-25")
            .unwrap()
            .contains("seeded")
    );
    assert!(why("unit", test, "").unwrap().contains("no date"));
    assert!(
        why("unit", "", "2026-11-25")
            .unwrap()
            .contains("nothing shows it")
    );
    assert!(why("lab", test, "2026-11-25").unwrap().contains("lab"));
    assert!(
        why("unit", "`lab:suite_cpu`", "2026-11-25")
            .unwrap()
            .contains("lab")
    );
    assert!(
        why("lab", "`lab:suite_cpu` (`nothing`)", "2026-11-25")
            .unwrap()
            .contains("no section")
    );
}
