//! The program `fabricbiosd`: its subcommands. Other programs that contain the daemon call [`main`] too.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::Arc,
};

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use fabricbios_log::{Limits, LogFormat, UntilWritten};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    journal, kinds,
    process::{
        check, helpers, membership,
        reload::{SetLogLevel, Source},
        run, state_dir,
    },
    settings::{CdiHook, Cli, Command, ConfigError, Settings},
    watchdog,
};

/// Most log lines in the queue to standard error, some seconds of a busy node; further lines are dropped.
const LINES_WAITING_MAX: usize = 16_384;

/// Runs the subcommand in the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let (_, flags) = matches.subcommand().unwrap_or(("", &matches));
    match cli.command {
        Command::ControlServer(_) => control_server(flags),
        Command::Check(_) => check(flags),
        Command::RenewCa(arguments) => say(
            "renew-ca",
            membership::renew_ca(&arguments).map(|it| it + "\n"),
        ),
        Command::NodeRequest(arguments) => {
            say("node-request", membership::node_request(&arguments))
        }
        Command::NodeAccept(arguments) => {
            let told = membership::node_accept(&arguments);
            say("node-accept", told.map(|it| it + "\n"))
        }
        Command::Supervisor => {
            helpers::supervisor_main().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Command::AskRdma => fabricbios_nvmet::ask_rdma_main(),
        Command::Watchdog(arguments) => {
            watchdog::watchdog_main(|is_orphan| kinds::ends(&arguments, is_orphan))
        }
        Command::Journal(arguments) => {
            journal::journal_main(&arguments).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Command::GpuWorker => fabricbios_gpu::worker::worker_main(),
        Command::CdiHook(CdiHook { records, lease }) => {
            match fabricbios_cgroup::hook_main(&records, lease) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => {
                    // The engine may have closed the other end of the pipe.
                    let hook = fabricbios_cgroup::HOOK;
                    writeln!(io::stderr(), "fabricbiosd {hook}: {why}").ok();
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// Writes what a subcommand says, or its error.
fn say(subcommand: &str, outcome: anyhow::Result<String>) -> ExitCode {
    match outcome {
        Ok(text) => tell(&text, ExitCode::SUCCESS),
        Err(error) => {
            writeln!(io::stderr(), "fabricbiosd {subcommand}: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn check(flags: &ArgMatches) -> ExitCode {
    let mut found = check::Findings::default();
    match read_as_owner(flags) {
        Ok(Ok(settings)) => found = check::check(&settings),
        Ok(Err(error)) => error.each().into_iter().for_each(|it| found.refused(it)),
        Err(error) => found.refused(format_args!("{error:#}")),
    }
    let status = match found.stop_a_start() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    };
    tell(&found.to_string(), status)
}

/// The settings as the user reads them as whom the daemon runs.
fn read_as_owner(flags: &ArgMatches) -> anyhow::Result<Result<Settings, ConfigError>> {
    let read = Settings::read(flags);
    if let Ok(settings) = &read
        && let Some(uid) = state_dir::become_owner(settings.state_dir())?
    {
        let at = settings.state_dir().display();
        writeln!(
            io::stderr(),
            "fabricbiosd check: as user {uid}, who owns {at}"
        )
        .ok();
        return Ok(Settings::read(flags));
    }
    Ok(read)
}

/// Writes to standard output.
fn tell(text: &str, status: ExitCode) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => status,
        Err(error) => {
            writeln!(
                io::stderr(),
                "fabricbiosd: write to standard output: {error}"
            )
            .ok();
            ExitCode::FAILURE
        }
    }
}

fn control_server(flags: &ArgMatches) -> ExitCode {
    let settings = Settings::read(flags);
    // A file that cannot be read does not say how its error is to be written.
    let flag = || flags.get_one::<LogFormat>("log_format").copied();
    let format = { settings.as_ref() }.map_or_else(|_refused| flag(), |it| it.log_format);
    let (_until_written, set_log_level) = log_to_stderr(format.unwrap_or_default());
    if let Err(errno) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%errno, "tenants' bytes and keys may end up in a core dump");
    }
    let run = settings.map_err(Into::into).and_then(|settings| {
        set_log_level(settings.log_level.as_deref());
        let flags = flags.clone();
        let source = Source {
            read: Arc::new(move || Settings::read(&flags)),
            set_log_level,
        };
        run::control_server(&settings, source)
    });
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs through a queue, so that a stalled reader of the log does not stall a cut. A lost log line does not lose the proof
/// of a cut: LEASE_QUERY returns it. Returns also what changes the level.
fn log_to_stderr(format: LogFormat) -> (UntilWritten, SetLogLevel) {
    let (writer, dropped, guard) = fabricbios_log::stderr(LINES_WAITING_MAX);
    let limits = Limits::default();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(None))
        .with_ansi(io::stderr().is_terminal())
        .fmt_fields(fabricbios_log::Fields)
        .event_format(fabricbios_log::Lines::of(format))
        .with_writer(writer)
        // Last: its type has those of the others.
        .with_filter_reloading();
    let level = log.reload_handle();
    log.finish().with(limits.clone()).init();
    let until_written = fabricbios_log::tell(dropped, limits, guard);
    let set_log_level = move |set: Option<&str>| {
        // The subscriber lives as long as the process.
        level.reload(filter(set)).ok();
    };
    (until_written, Box::new(set_log_level))
}

/// Which lines the log has. `set`: the setting log-level.
fn filter(set: Option<&str>) -> EnvFilter {
    let set = set.map(EnvFilter::new);
    let of_environment = || EnvFilter::try_from_default_env().ok();
    set.or_else(of_environment)
        .unwrap_or_else(|| EnvFilter::new("info"))
}
