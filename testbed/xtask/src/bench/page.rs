//! docs/bench.md, from the lines of a run.

use super::figures::{Figure, Run};

pub(super) const PAGE: &str = "docs/bench.md";

/// How the peers run.
const PEERS: &str = include_str!("peers.md");

/// The page of this run. `command` is what made it.
pub(super) fn page(run: &Run) -> String {
    let machine = &run.machine;
    let (gated, others): (Vec<&Figure>, Vec<_>) =
        run.figures.iter().partition(|it| it.goal.is_some());
    let quick = if machine.quick { " --quick" } else { "" };
    let guests = match machine.emulated {
        None => "none ran",
        Some(true) => "emulated: their rows say so, and only their ratios mean something",
        Some(false) => "with hardware virtualisation",
    };
    let mut page = format!(
        "# Measured in one run\n\n\
         `cargo xtask bench{quick}` has written this page, its plots and [bench.json](bench.json); `cargo xtask bench --page` makes \
         the page again from that file. What each bench does: [bench/README.md](../bench/README.md).\n\n\
         | | |\n|---|---|\n\
         | commit, date | {}, {} |\n\
         | processor | {}, {} cores |\n\
         | kernel | {} |\n\
         | load before the run | {} |\n\
         | length | {} |\n\
         | guests | {guests} |\n\n\
         A ratio is ours in times the peer's, the median of interleaved pairs, with its 95 % interval. A goal is missed if the whole\n\
         interval lies on its wrong side; fewer than 15 pairs judge nothing. Only ratios say something of another machine.\n\n\
         <picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"bench-dark.svg\">\n  \
         <img src=\"bench-light.svg\" alt=\"A bar for each figure: how many times better than its peer, and its goal\">\n</picture>\n",
        machine.commit,
        machine.date,
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.load,
        if machine.quick {
            "quick: fewer operations in a round, as many pairs"
        } else {
            "full"
        },
    );
    page +=
        "\n## Goals\n\n| figure | ours | against | ratio | goal | |\n|---|---|---|---|---|---|\n";
    for figure in gated {
        let verdict = match figure.met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "not judged",
        };
        row(&mut page, figure, &[&goal(figure), verdict]);
    }
    page += "\n## Without a goal\n\n| figure | ours | against | ratio |\n|---|---|---|---|\n";
    for figure in others {
        row(&mut page, figure, &[]);
    }
    if !run.skipped.is_empty() {
        page += "\n## Not run\n\n| figure or bench | why |\n|---|---|\n";
        for it in &run.skipped {
            page += &format!("| {} | {} |\n", it.name, cell(&it.skipped));
        }
    }
    page + "\n## How the peers run\n\n" + PEERS
}

/// A row, with further cells.
fn row(page: &mut String, figure: &Figure, more: &[&str]) {
    let Figure {
        name, what, unit, ..
    } = figure;
    let emulated = if figure.emulated { " (emulated)" } else { "" };
    let against = match (&figure.peer_name, figure.peer) {
        (Some(name), Some(peer)) => format!("{}: {}", cell(name), with_unit(peer, unit)),
        _ => "–".to_owned(),
    };
    *page += &format!(
        "| {}{emulated} ({name}) | {} | {against} | {} |",
        cell(what),
        with_unit(figure.ours, unit),
        ratio(figure),
    );
    for it in more {
        *page += &format!(" {it} |");
    }
    page.push('\n');
}

/// The goal of the ratio.
fn goal(figure: &Figure) -> String {
    let sign = match figure.advantage(2.0) > 1.0 {
        true => "≥",
        false => "≤",
    };
    format!("{sign} {}", number(figure.goal.unwrap_or_default()))
}

fn ratio(figure: &Figure) -> String {
    let pairs = figure
        .pairs
        .map_or_else(String::new, |it| format!(", {it} pairs"));
    match (figure.ratio, figure.low, figure.high) {
        (Some(ratio), Some(low), Some(high)) => {
            format!(
                "{} ({}–{}){pairs}",
                number(ratio),
                number(low),
                number(high)
            )
        }
        (Some(ratio), ..) => number(ratio) + &pairs,
        (None, Some(low), Some(high)) => {
            format!(
                "ours {}–{}, {} rounds",
                number(low),
                number(high),
                figure.pairs.unwrap_or(0)
            )
        }
        _ => "–".to_owned(),
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// Three digits that count, or all before the point.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        it if it >= 100.0 => 0,
        it if it >= 10.0 => 1,
        it if it >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && grouped != "-" {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// Text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{Better, tests};

    #[test]
    fn numbers_have_the_digits_that_count() {
        let known = [
            (0.0123, "0.0123"),
            (0.713, "0.71"),
            (2.345, "2.35"),
            (25.14, "25.1"),
            (251.4, "251"),
            (5490.2, "5,490"),
            (1_234_567.0, "1,234,567"),
        ];
        for (value, text) in known {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn each_figure_has_a_row_with_its_verdict() {
        let mut met = tests::figure("churn/1", Better::Higher, [1.9, 2.1, 2.2]);
        (met.goal, met.met) = (Some(2.0), Some(true));
        let mut missed = tests::figure("grant/one-sync", Better::Lower, [1.9, 2.1, 2.2]);
        (missed.goal, missed.met, missed.emulated) = (Some(1.5), Some(false), true);
        let mut run = Run {
            machine: tests::machine(),
            figures: vec![
                met,
                missed,
                tests::figure("x/y", Better::Lower, [0.5, 0.6, 0.7]),
            ],
            skipped: Vec::new(),
        };
        run.skip("strategy", "no device | no figure");
        let page = page(&run);
        let rows = [
            "| grant and free (churn/1) | 900 a second | etcd 3.4.23: 450 a second | 2.10 (1.90–2.20), 15 pairs | ≥ 2.00 | met |",
            "| grant and free (emulated) (grant/one-sync) | 900 a second | etcd 3.4.23: 450 a second | 2.10 (1.90–2.20), 15 pairs | ≤ 1.50 | **missed** |",
            "| grant and free (x/y) | 900 a second | etcd 3.4.23: 450 a second | 0.60 (0.50–0.70), 15 pairs |",
            "| strategy | no device \\| no figure |",
        ];
        for row in rows {
            assert!(page.lines().any(|it| it == row), "{row}\n{page}");
        }
        assert!(page.contains("0123456, 2026-11-28") && !page.contains("--quick"));
    }
}
