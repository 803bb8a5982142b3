//! The plots of docs/bench.md: a bar for each figure with a ratio, right of the line where it is better than its peer.

use super::figures::{Figure, Run};
use super::page::number;

/// The files, each with its colours.
pub(super) const PLOTS: [(&str, &Colours); 2] = [
    (
        "docs/bench-light.svg",
        &Colours {
            paper: "#ffffff",
            text: "#1f2328",
            line: "#8b98a9",
            met: "#2f7d4f",
            missed: "#c2410c",
            none: "#7a8696",
        },
    ),
    (
        "docs/bench-dark.svg",
        &Colours {
            paper: "#0d1117",
            text: "#e6edf3",
            line: "#6b7686",
            met: "#4fb477",
            missed: "#f0883e",
            none: "#8b98a9",
        },
    ),
];

/// The colours of a plot.
pub(super) struct Colours {
    paper: &'static str,
    text: &'static str,
    line: &'static str,
    met: &'static str,
    missed: &'static str,
    none: &'static str,
}

const WIDTH: f64 = 880.0;
const LEFT: f64 = 220.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 64.0;
const ROW: f64 = 22.0;
/// The ends of the axis: bars beyond end there, and their numbers tell.
const MOST: f64 = 16.0;

/// The plot of this run.
pub(super) fn plot(run: &Run, colours: &Colours) -> String {
    let figures: Vec<_> = { run.figures.iter() }
        .filter_map(|it| Some((it, it.ratio?)))
        .collect();
    let height = TOP + ROW * figures.len() as f64 + 16.0;
    let Colours {
        paper, text, line, ..
    } = colours;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{text}\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{paper}\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"14\" font-weight=\"bold\">How many times better than the peer</text>\n\
         <text x=\"16\" y=\"42\">bar: median (green: goal met, orange: missed); thin line: 95 % interval; thick mark: goal; right: ours in times the peer</text>\n"
    );
    for times in [0.25, 0.5, 1.0, 2.0, 4.0, MOST] {
        let (x, end) = (place(times), height - 12.0);
        let width = if times == 1.0 { 2 } else { 1 };
        svg += &format!(
            "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{end}\" stroke=\"{line}\" stroke-width=\"{width}\" opacity=\"0.6\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{times}×</text>\n",
            TOP - 4.0
        );
    }
    for (at, (figure, ratio)) in figures.into_iter().enumerate() {
        bar(&mut svg, figure, ratio, TOP + ROW * at as f64, colours);
    }
    svg + "</svg>\n"
}

fn bar(svg: &mut String, figure: &Figure, ratio: f64, top: f64, colours: &Colours) {
    let colour = match figure.met {
        Some(true) => colours.met,
        Some(false) => colours.missed,
        None => colours.none,
    };
    let at = |ratio: f64| place(figure.advantage(ratio));
    let (one, end, middle) = (place(1.0), at(ratio), top + ROW / 2.0);
    let (left, width) = (one.min(end), (end - one).abs().max(1.0));
    *svg += &format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
         <rect class=\"bar\" x=\"{left:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\n",
        LEFT - 8.0,
        middle + 4.0,
        escaped(&figure.name),
        top + 4.0,
        ROW - 8.0,
    );
    if let (Some(low), Some(high)) = (figure.low, figure.high) {
        *svg += &format!(
            "<line x1=\"{:.1}\" y1=\"{middle}\" x2=\"{:.1}\" y2=\"{middle}\" stroke=\"{}\"/>\n",
            at(low),
            at(high),
            colours.text
        );
    }
    if let Some(goal) = figure.goal {
        let x = at(goal);
        *svg += &format!(
            "<line class=\"goal\" x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"3\"/>\n",
            top + 2.0,
            top + ROW - 2.0,
            colours.text
        );
    }
    *svg += &format!(
        "<text x=\"{}\" y=\"{}\">{}</text>\n",
        WIDTH - RIGHT + 12.0,
        middle + 4.0,
        number(ratio)
    );
}

/// Where so many times better lies: the axis is logarithmic.
fn place(times: f64) -> f64 {
    let share = times.clamp(1.0 / MOST, MOST).log2() / MOST.log2();
    LEFT + (WIDTH - LEFT - RIGHT) * (share + 1.0) / 2.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::{Better, tests};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn run() -> Run {
        let mut met = tests::figure("a/<&>", Better::Higher, [1.9, 2.1, 2.2]);
        (met.goal, met.met) = (Some(2.0), Some(true));
        let mut missed = tests::figure("a/2", Better::Lower, [1.9, 2.1, 2.2]);
        (missed.goal, missed.met) = (Some(1.5), Some(false));
        let mut without = tests::figure("a/4", Better::Lower, [0.0; 3]);
        without.ratio = None;
        let far = tests::figure("a/3", Better::Lower, [500.0, 900.0, 1000.0]);
        Run {
            machine: tests::machine(),
            figures: vec![met, missed, far, without],
            skipped: Vec::new(),
        }
    }

    #[test]
    fn a_plot_is_xml_with_a_bar_for_each_ratio() {
        for (_, colours) in PLOTS {
            let svg = plot(&run(), colours);
            let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.stdin)";
            let mut python = Command::new("python3")
                .args(["-c", parse])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            python
                .stdin
                .take()
                .unwrap()
                .write_all(svg.as_bytes())
                .unwrap();
            assert!(python.wait().unwrap().success(), "{svg}");
            assert_eq!(svg.matches("class=\"bar\"").count(), 3);
            assert_eq!(svg.matches("class=\"goal\"").count(), 2);
            for colour in [colours.paper, colours.met, colours.missed, colours.none] {
                assert!(svg.contains(colour), "{colour}");
            }
        }
        let [(_, light), (_, dark)] = PLOTS;
        assert_ne!(light.paper, dark.paper);
    }

    #[test]
    fn better_is_right_and_nothing_leaves_the_axis() {
        assert!(place(2.0) > place(1.0) && place(1.0) > place(0.5));
        assert_eq!((place(0.0), place(1e9)), (LEFT, WIDTH - RIGHT));
        let worse = tests::figure("a/2", Better::Lower, [1.9, 2.1, 2.2]);
        assert!(worse.advantage(2.1) < 1.0);
    }
}
