//! `fabricctl`: lease hardware from a node, from a shell.
//!
//! Standard output carries what was asked for, standard error why it could not be had, and the exit
//! status which of the two happened. Nothing is decided here: the node grants and refuses.
#![deny(unsafe_code)]

mod args;
mod commands;
mod failure;
mod gid;
mod hint;
mod lease_json;
mod lease_text;
mod nvmeof_json;
mod output;
mod progress;
mod time_text;
mod usage;
mod values;

use std::process::ExitCode;

use clap::Parser;

use crate::{args::Args, output::Output};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::report(&error),
    };
    let output = Output { json: args.json };
    match commands::run(args, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(output),
    }
}
