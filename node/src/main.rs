//! `fabricbiosd`.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Parser;
use fabricbios_node::{
    config::{Cli, Command},
    run,
};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let Command::ControlServer(settings) = Cli::parse().command;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    match run::control_server(*settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
