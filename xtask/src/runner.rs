//! Runs lab suites, two at a time, and shows the output of each as a whole.

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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A suite to run.
pub(crate) struct Chosen<'a> {
    /// Its name as a step.
    pub(crate) name: &'a str,
    pub(crate) about: &'a str,
    pub(crate) kind: &'a Kind,
    /// In full length, not in the short form.
    pub(crate) full: bool,
}

struct Runner<'a> {
    lab: Lab,
    layout: &'a Layout,
    /// Processors of this host.
    cpus: usize,
    report: Mutex<&'a mut Report>,
}

/// Runs all suites. Programs are built before the first suite begins: a compiler beside it would disturb its times.
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
    };
    lanes::run(
        cpus,
        with_job.collect(),
        |(_, suite)| suite.kind.quiet(),
        |suites, beside| runner.lane(suites, beside),
    )
}

impl Runner<'_> {
    /// Runs one suite after the other. With other lanes `beside` this one, the output of a suite is shown when it has
    /// ended.
    fn lane(
        &self,
        suites: &mut dyn Iterator<Item = (Result<Job>, Chosen<'_>)>,
        beside: bool,
    ) -> Result<()> {
        let said = Arc::new(Mutex::new(Vec::new()));
        let echo = if beside {
            let said = Arc::clone(&said);
            Echo::Call(Arc::new(move |bytes| {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(bytes);
            }))
        } else {
            Echo::Plain
        };
        let mut shared = Shared::none();
        for (job, suite) in suites {
            let Chosen { name, about, .. } = suite;
            if beside {
                println!("== {name} begins");
            } else {
                println!("\n== {name}: {about}");
            }
            let start = Instant::now();
            let outcome = job
                .and_then(|mut job| {
                    job.echo = echo.clone();
                    if beside && suite.kind.processors().is_none() {
                        // Processors of a guest wait for each other, and cost nearly twice as much when the host has
                        // fewer than all guests together.
                        let share = u32::try_from(self.cpus / lanes::MAX)?;
                        job.vm.processors =
                            Processors::cores(share.clamp(1, job.vm.processors.cpus()));
                    }
                    self.suite(job, suite.kind, &mut shared)
                })
                .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
            let said = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
            let mut out = std::io::stdout().lock();
            if beside {
                writeln!(out, "\n== {name}: {about}")?;
                out.write_all(&said)?;
            }
            if let Outcome::Failed(why) | Outcome::Skipped(why) = &outcome {
                writeln!(out, "{name}: {why}")?;
            }
            let took = start.elapsed();
            writeln!(out, "== {name} ended after {:.1} s", took.as_secs_f64())?;
            drop(out);
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            report.record(name, outcome, took, false);
        }
        shared.take().map_or(Ok(()), |session| session.close(true))
    }

    /// Runs the suite in its own guests or in that of its lane.
    fn suite(&self, job: Job, kind: &Kind, shared: &mut Shared<Session>) -> Result<Outcome> {
        let judge = match kind {
            Kind::Program(suite) if !kind.shares() => {
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

/// The session is returned if the guest is as before.
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
