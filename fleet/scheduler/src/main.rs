//! The program `fabricbios-scheduler`.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;
use fabricbios_log::{Limits, LogFormat, UntilWritten};
use fabricbios_scheduler::{Cli, Scheduler};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// Most log lines in the queue to standard error; further lines are dropped.
const LINES_WAITING_MAX: usize = 16_384;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let _until_written = log_to_stderr(cli.log_format);
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn log_to_stderr(format: LogFormat) -> UntilWritten {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let (writer, dropped, guard) = fabricbios_log::stderr(LINES_WAITING_MAX);
    let limits = Limits::default();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .fmt_fields(fabricbios_log::Fields)
        .event_format(fabricbios_log::Lines::of(format))
        .with_writer(writer)
        .finish()
        .with(limits.clone())
        .init();
    fabricbios_log::tell(dropped, limits, guard)
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
        let scheduler = Scheduler::start_with(&cli.settings, &cli.etcd)?;
        let (id, listen) = (scheduler.id(), scheduler.local_addr());
        let http = scheduler.http_addr().map(|it| format!(" http={it}"));
        let http = http.unwrap_or_default();
        // Whoever has started the program may not read its output.
        writeln!(io::stdout(), "READY scheduler={id} listen={listen}{http}").ok();
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        scheduler.stop().await;
        Ok(())
    })
}

#[test]
fn every_command_in_the_pages_is_accepted() {
    let parse = |words: &[String]| Cli::try_parse_from(words);
    fabricbios_testbed::pages::assert_accepted("fabricbios-scheduler", 5, parse);
}
