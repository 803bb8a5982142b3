//! The lines of a run: what describes the machine, figures, and what did not run.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The first line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    /// Processes that wanted a processor before the run, on average over a minute.
    pub(super) load: f64,
    pub(super) commit: String,
    pub(super) date: String,
    /// Fewer operations in a round, as many pairs.
    pub(super) quick: bool,
    /// Whether guests of the lab were emulated; `None`: none ran.
    pub(super) emulated: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Higher,
    Lower,
}

/// One figure, as the benches write it, which leave the last three out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    /// The bench, a slash, and the figure.
    pub(super) name: String,
    pub(super) what: String,
    pub(super) ours: f64,
    pub(super) peer: Option<f64>,
    pub(super) peer_name: Option<String>,
    pub(super) unit: String,
    pub(super) better: Better,
    /// Ours in times the peer.
    pub(super) ratio: Option<f64>,
    /// 95 % interval of the ratio; without a peer, of ours.
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    /// Pairs, or rounds without a peer; `None`: one number, or statistics over requests.
    pub(super) pairs: Option<usize>,
    /// What the ratio is to reach.
    #[serde(default)]
    pub(super) goal: Option<f64>,
    /// `None`: no goal, or nothing that could be judged.
    #[serde(default)]
    pub(super) met: Option<bool>,
    /// Measured in an emulated guest: only the ratio says something.
    #[serde(default)]
    pub(super) emulated: bool,
}

/// A figure or a bench that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) skipped: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Machine(Machine),
    Figure(Figure),
    Skipped(Skipped),
}

/// A whole run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figure>,
    pub(super) skipped: Vec<Skipped>,
}

impl Run {
    /// Of the lines of a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(Line::parse);
        let Some(Line::Machine(machine)) = lines.next().transpose()? else {
            bail!("the first line does not describe a machine");
        };
        let (mut figures, mut skipped) = (Vec::new(), Vec::new());
        for line in lines {
            match line? {
                Line::Figure(figure) => figures.push(figure),
                Line::Skipped(it) => skipped.push(it),
                Line::Machine(_) => bail!("a second machine; give each run a file of its own"),
            }
        }
        Ok(Self {
            machine,
            figures,
            skipped,
        })
    }

    /// The lines, as [`Run::parse`] reads them.
    pub(super) fn lines(&self) -> Result<String> {
        let figures = self.figures.iter().cloned().map(Line::Figure);
        let skipped = self.skipped.iter().cloned().map(Line::Skipped);
        let all = [Line::Machine(self.machine.clone())].into_iter();
        let lines = all.chain(figures).chain(skipped);
        let lines = lines.map(|line| Ok(serde_json::to_string(&line)? + "\n"));
        lines.collect()
    }

    /// Adds what a bench wrote, and judges it.
    pub(super) fn add(&mut self, text: &str, emulated: bool) -> Result<()> {
        for line in text.lines() {
            match Line::parse(line)? {
                Line::Figure(mut figure) => {
                    figure.emulated = emulated;
                    figure.judge(self.machine.quick);
                    self.figures.push(figure);
                }
                Line::Skipped(skipped) => self.skipped.push(skipped),
                Line::Machine(_) => bail!("a bench describes a machine: {line}"),
            }
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, name: &str, why: &str) {
        self.skipped.push(Skipped {
            name: name.to_owned(),
            skipped: why.to_owned(),
        });
    }
}

impl Line {
    fn parse(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("no line of a run: {line}"))
    }
}

impl Figure {
    /// How many times better than the peer, whichever way is better.
    pub(super) fn advantage(&self, ratio: f64) -> f64 {
        match self.better {
            Better::Higher => ratio,
            Better::Lower => 1.0 / ratio,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A line as `fabricbios-bench` writes it.
    const WRITTEN: &str = r#"{"name":"churn/1","what":"grant and free","unit":"a second","better":"higher","ours":900.0,
        "peer":450.0,"peer_name":"etcd 3.4.23","ratio":2.0,"low":1.5,"high":2.0,"pairs":15}"#;

    pub(in crate::bench) fn machine() -> Machine {
        Machine {
            cpu: "a & b".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            load: 0.1,
            commit: "0123456".to_owned(),
            date: "2026-11-28".to_owned(),
            quick: false,
            emulated: None,
        }
    }

    pub(in crate::bench) fn figure(
        name: &str,
        better: Better,
        [low, ratio, high]: [f64; 3],
    ) -> Figure {
        Figure {
            name: name.to_owned(),
            better,
            ratio: Some(ratio),
            low: Some(low),
            high: Some(high),
            ..serde_json::from_str(WRITTEN).unwrap()
        }
    }

    #[test]
    fn what_benches_write_is_judged_and_read_again_with_every_field() {
        let mut run = Run {
            machine: machine(),
            figures: Vec::new(),
            skipped: Vec::new(),
        };
        let skipped = r#"{"name":"strategy","skipped":"no RDMA device"}"#;
        let written = WRITTEN.replace('\n', "");
        run.add(&format!("{written}\n{skipped}\n"), true).unwrap();
        run.skip("python", "no wheel");
        let lines = run.lines().unwrap();
        assert_eq!(Run::parse(&lines).unwrap(), run);
        let figure: serde_json::Value =
            serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
        for field in [
            "name",
            "ours",
            "peer",
            "peer_name",
            "unit",
            "better",
            "ratio",
            "low",
            "high",
            "goal",
            "met",
        ] {
            assert!(!figure[field].is_null(), "{field}: {figure}");
        }
        assert!(figure["goal"] == 2.0 && figure["met"] == true && figure["emulated"] == true);
        assert_eq!((run.figures.len(), run.skipped.len()), (1, 2));
    }

    /// The programs of the lab write the same lines, if they are asked to.
    #[test]
    fn what_a_program_of_the_lab_writes_is_a_figure() {
        let program = "import ratios; ratios.report('a/b', 'grant', 'ms, less is better', ('leased', 'by hand'), \
                       ([1] * 6, [2] * 6)); print(ratios.lines_of_figures())";
        let output = |environment: &[(&str, &str)]| {
            let mut python = std::process::Command::new("python3");
            python
                .args(["-B", "-c", program])
                .env_remove("FABRICBIOS_FIGURES");
            python.envs(environment.iter().copied());
            let guest = crate::bench::tests::layout()
                .repository()
                .join("testbed/guest");
            let output = python.current_dir(guest).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let asked = output(&[("FABRICBIOS_FIGURES", "1")]);
        let line = asked.lines().find(|it| it.starts_with('{')).unwrap();
        let Line::Figure(figure) = Line::parse(line).unwrap() else {
            panic!("{line}");
        };
        assert_eq!(
            (figure.ours, figure.peer, figure.ratio),
            (1.0, Some(2.0), Some(0.5))
        );
        assert_eq!((figure.better, figure.unit.as_str()), (Better::Lower, "ms"));
        assert!(asked.ends_with("['--json=/dev/stdout']\n"), "{asked}");
        let not_asked = output(&[]);
        assert!(
            !not_asked.contains('{') && not_asked.ends_with("[]\n"),
            "{not_asked}"
        );
    }

    #[test]
    fn lines_of_no_run_are_refused() {
        let first = Run {
            machine: machine(),
            figures: Vec::new(),
            skipped: Vec::new(),
        };
        let first = first.lines().unwrap();
        for wrong in [
            "",
            WRITTEN,
            &format!("{first}{first}"),
            &format!("{first}{{}}"),
            &format!("{first}x"),
        ] {
            assert!(Run::parse(wrong).is_err(), "{wrong}");
        }
    }
}
