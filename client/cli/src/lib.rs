//! `fabricctl`: lease hardware from a node, from a shell.
//!
//! Standard output has the result, standard error the failure, and the exit status the kind of failure. All decisions
//! are the node's.
//!
//! Read first: `commands/mod.rs`.
#![deny(unsafe_code)]

mod args;
mod commands;
mod failure;
mod gid;
mod hint;
mod kinds;
mod lease_text;
mod output;
mod progress;
mod signals;
mod time_text;
mod usage;
mod values;

use std::{env, process::ExitCode};

use fabricbios_client::json;

use crate::output::Output;

pub use crate::args::command;

/// Runs the command in the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let args = match args::parse(env::args_os()) {
        Ok(args) => args,
        Err(error) => return usage::report(&error),
    };
    let output = Output { json: args.json };
    match commands::run(args, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(output),
    }
}
