//! Runs lab suites, three at a time, and shows the output of each as a whole. A suite that fails runs once more, alone, in a
//! fresh guest, after all others have ended.

use crate::cargo::Scope;
use crate::lab::{BootArguments, say};
use crate::lanes::{self, Shared};
use crate::suites::{self, Kind};
use anyhow::{Context, Result};
use fabricbios_testbed::requirements::Need;
use fabricbios_testbed::{
    Echo, Finished, Job, Lab, Layout, Outcome, Processors, Report, Session, suite,
};
use std::io::Write;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A suite to run.
pub(crate) struct Chosen<'a> {
    /// Its step name.
    pub(crate) name: &'a str,
    pub(crate) about: &'a str,
    pub(crate) kind: &'a Kind,
    /// Whether to run the full length and not the short form.
    pub(crate) full: bool,
}

struct Runner<'a> {
    lab: Lab,
    layout: &'a Layout,
    /// Processors of this host.
    cpus: usize,
    report: Mutex<&'a mut Report>,
    failed: Mutex<Vec<Failed<'a>>>,
}

/// A suite that has failed once.
struct Failed<'a> {
    job: Job,
    suite: Chosen<'a>,
    why: String,
    run: Run,
}

/// One run of a suite.
struct Run {
    output: Vec<u8>,
    took: Duration,
}

/// The guest and the output of suites that run one after the other.
struct Lane {
    /// Whether other lanes run beside this one.
    beside: bool,
    echo: Echo,
    /// The output of the running suite so far.
    output: Arc<Mutex<Vec<u8>>>,
    shared: Shared<Session>,
}

impl Lane {
    /// A new lane. With other lanes `beside` it, a suite's output is shown at its end, else as it comes.
    fn new(beside: bool) -> Self {
        let output = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&output);
        let echo = Echo::Call(Arc::new(move |bytes| {
            lock(&collected).extend_from_slice(bytes);
            if !beside {
                let mut out = std::io::stdout().lock();
                // A terminal that is gone must not stop the suite.
                drop(out.write_all(bytes).and_then(|()| out.flush()));
            }
        }));
        Self {
            beside,
            echo,
            output,
            shared: Shared::none(),
        }
    }

    fn close(mut self) -> Result<()> {
        let session = self.shared.take();
        session.map_or(Ok(()), |session| session.close(true))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all suites. All programs are built before the first suite begins: a compiler beside a suite would disturb its
/// times.
pub(crate) fn run(
    layout: &Layout,
    boot: &BootArguments,
    scope: Scope,
    chosen: Vec<Chosen<'_>>,
    report: &mut Report,
) -> Result<()> {
    if chosen.is_empty() {
        return Ok(());
    }
    let built = scope.build_programs(layout);
    built.context("cannot build the programs under test")?;
    let lab = boot.prepare(layout, &[Need::Guest, Need::Build], &say)?;
    let with_job = chosen
        .into_iter()
        .map(|suite| (suite.kind.job(suite.full, layout, scope), suite));
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let runner = Runner {
        lab,
        layout,
        cpus,
        report: Mutex::new(report),
        failed: Mutex::default(),
    };
    let ended = lanes::run(
        cpus,
        with_job.collect(),
        |(_, suite)| suite.kind.quiet(),
        |(_, suite)| suite.kind.processors(),
        |suites, beside| runner.lane(suites, beside),
    );
    let failed = std::mem::take(&mut *lock(&runner.failed));
    lanes::once_more(failed, |failed, runs| runner.once_more(&failed, runs));
    ended
}

impl<'a> Runner<'a> {
    /// Runs one suite after the other, with other lanes `beside` this one or without. Failed suites are left for a
    /// second run.
    fn lane(
        &self,
        suites: &mut dyn Iterator<Item = (Result<Job>, Chosen<'a>)>,
        beside: bool,
    ) -> Result<()> {
        let mut lane = Lane::new(beside);
        for (job, suite) in suites {
            let name = suite.name;
            match job {
                Ok(job) => match self.attempt(&job, &suite, &mut lane)? {
                    (Outcome::Failed(why), run) => lock(&self.failed).push(Failed {
                        job,
                        suite,
                        why,
                        run,
                    }),
                    (outcome, run) => self.record(&suite, outcome, run.took),
                },
                Err(error) => {
                    println!("\n== {name}: {}\n{name}: {error:#}", suite.about);
                    let failed = Outcome::Failed(format!("{error:#}"));
                    self.record(&suite, failed, Duration::ZERO);
                }
            }
        }
        lane.close()
    }

    fn record(&self, suite: &Chosen<'_>, outcome: Outcome, took: Duration) {
        let may_skip = suite.kind.clients();
        lock(&self.report).record(suite.name, outcome, took, may_skip);
    }

    /// Runs a suite and shows its output and its failure.
    fn attempt(&self, job: &Job, suite: &Chosen<'_>, lane: &mut Lane) -> Result<(Outcome, Run)> {
        let Chosen { name, about, .. } = suite;
        if lane.beside {
            println!("== {name} begins");
        } else {
            println!("\n== {name}: {about}");
        }
        let start = Instant::now();
        let outcome = self
            .guest(job, suite, lane)
            .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let output = std::mem::take(&mut *lock(&lane.output));
        let mut out = std::io::stdout().lock();
        if lane.beside {
            writeln!(out, "\n== {name}: {about}")?;
            out.write_all(&output)?;
        }
        if let Outcome::Failed(why) | Outcome::Skipped(why) = &outcome {
            writeln!(out, "{name}: {why}")?;
        }
        let took = start.elapsed();
        writeln!(out, "== {name} ended after {:.1} s", took.as_secs_f64())?;
        Ok((outcome, Run { output, took }))
    }

    fn guest(&self, job: &Job, suite: &Chosen<'_>, lane: &mut Lane) -> Result<Outcome> {
        let mut job = job.clone();
        job.echo = lane.echo.clone();
        if lane.beside && suite.kind.processors().is_none() {
            // Processors of a guest wait for each other, and cost nearly twice as much when the host has
            // fewer than all guests together.
            let share = u32::try_from(self.cpus / lanes::MAX)?;
            job.vm.processors = Processors::cores(share.clamp(1, job.vm.processors.cpus()));
        }
        self.suite(job, suite.kind, &mut lane.shared)
    }

    /// Runs a failed suite once more, alone, if `runs`; else only records why it failed. Returns whether it has failed
    /// for good.
    fn once_more(&self, failed: &Failed<'_>, runs: bool) -> bool {
        let Failed {
            suite, why, run, ..
        } = failed;
        let (outcome, took) = if runs {
            println!(
                "\n== {} runs once more, alone, in a fresh guest",
                suite.name
            );
            let start = Instant::now();
            let second = self.second(failed);
            let second = second.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
            (
                Outcome::of_two_runs(why, second),
                run.took + start.elapsed(),
            )
        } else {
            println!(
                "\n== {} is not run once more: too many have failed twice",
                suite.name
            );
            (Outcome::Failed(why.clone()), run.took)
        };
        let for_good = matches!(outcome, Outcome::Failed(_));
        self.record(suite, outcome, took);
        for_good
    }

    fn second(&self, first: &Failed<'_>) -> Result<Outcome> {
        let Failed {
            job, suite, why, ..
        } = first;
        let mut lane = Lane::new(false);
        let (outcome, run) = self.attempt(job, suite, &mut lane)?;
        let directory = self.layout.keep(&format!("{}-twice", suite.name))?;
        std::fs::write(directory.join("first.log"), &first.run.output)?;
        std::fs::write(directory.join("first-failure.txt"), why)?;
        std::fs::write(directory.join("second.log"), &run.output)?;
        println!(
            "{}: the outputs of both runs are in {}",
            suite.name,
            directory.display()
        );
        lane.close()?;
        Ok(outcome)
    }

    /// Runs the suite in guests of its own or in the shared guest of its lane.
    fn suite(&self, job: Job, kind: &Kind, shared: &mut Shared<Session>) -> Result<Outcome> {
        let judge = match kind {
            Kind::Program(suite) if !kind.shares() => {
                // The lane's guest, perhaps one with many processors, would only wait beside this one.
                if let Some(other) = shared.take() {
                    other.close(true)?;
                }
                return suites::run_alone(&self.lab, job, suite, self.layout);
            }
            Kind::Program(_) => suite::outcome,
            Kind::Rust(_) => suite::rust_outcome,
        };
        if let Some(other) = shared.take_unfit(|session| session.is(&job.vm)) {
            other.close(true)?;
        }
        shared.turn(
            || self.lab.session(&job),
            |session| turn(session, &job, judge),
        )
    }
}

/// Runs the suite in the lane's session. Returns the session if the guest is as before.
fn turn(
    session: Session,
    job: &Job,
    judge: fn(&Finished) -> Outcome,
) -> Result<(Option<Session>, Outcome)> {
    let (session, turn) = session.run(job)?;
    let mut outcome = judge(&turn.finished);
    if !turn.left.is_empty() && !matches!(outcome, Outcome::Failed(_)) {
        outcome = Outcome::Failed(format!(
            "the guest is not as it was:\n{}",
            turn.left.join("\n")
        ));
    }
    if let Outcome::Failed(_) = outcome {
        session.close(false)?;
        return Ok((None, outcome));
    }
    Ok((Some(session), outcome))
}
