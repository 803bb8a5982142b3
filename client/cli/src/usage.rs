//! Reports wrong arguments in one line.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Arg, ArgAction, Command, error::ErrorKind};

use crate::{args, failure::Failure, output::Output};

/// Prints the help if it was requested, else the problem.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(error),
        // Without a command the list of commands is printed.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            show(error);
            ExitCode::from(2)
        }
        kind => {
            let given: Vec<String> = env::args_os()
                .skip(1)
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect();
            let json = given.iter().any(|arg| arg == "--json");
            let command = named_command(&given);
            let line = match kind {
                // The text of clap lists hidden commands too.
                ErrorKind::MissingSubcommand => {
                    format!("which command? `{command} --help` lists them")
                }
                _ => one_line(&error.to_string(), &command),
            };
            Failure::usage(line).report(Output { json })
        }
    }
}

fn show(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => {
            writeln!(io::stderr(), "fabricctl: cannot print help: {problem}").ok();
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The message of clap without its last paragraphs, which are the usage and a pointer to the help.
fn one_line(text: &str, command: &str) -> String {
    let useful = text.lines().take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let words: Vec<&str> = useful.flat_map(str::split_whitespace).collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    format!("{line}; see `{command} --help`")
}

/// The command that the words name, such as `fabricctl lease alloc mem`.
fn named_command(given: &[String]) -> String {
    let mut root = args::command();
    // Only `build` adds the global flags to the subcommands.
    root.build();
    let (mut command, mut path) = (&root, root.get_name().to_owned());
    let mut words = given.iter();
    while let Some(word) = words.next() {
        if let Some(found) = command.find_subcommand(word) {
            command = found;
            path = format!("{path} {}", found.get_name());
        } else if takes_next(command, word) {
            words.next();
        }
    }
    path
}

/// Whether the next word is the value of this flag, and not a command.
fn takes_next(command: &Command, word: &str) -> bool {
    let Some(name) = word.strip_prefix("--") else {
        return false;
    };
    let named = |arg: &&Arg| arg.get_long() == Some(name);
    let arg = command.get_arguments().find(named);
    arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn errors_fit_one_line() {
        let wrong: [&[&str]; 4] = [
            &[
                "fabricctl",
                "lease",
                "alloc",
                "mem",
                "--bytes",
                "1.5GiB",
                "--secs",
                "1",
            ],
            &["fabricctl", "lease", "alloc", "mem"],
            &["fabricctl", "lease", "query", "xyz"],
            &["fabricctl", "laese"],
        ];
        for args in wrong {
            let error = Args::try_parse_from(args).unwrap_err().to_string();
            let line = one_line(&error, "fabricctl");
            assert!(!line.contains('\n') && line.len() > 40, "{line}");
        }
    }

    #[test]
    fn the_help_of_the_command_that_was_meant() {
        let cases = [
            (
                "lease alloc mem --bytes x --secs 1",
                "fabricctl lease alloc mem",
            ),
            ("--node lease fence clear", "fabricctl fence clear"),
            ("lease --json --node=x renew", "fabricctl lease renew"),
            ("lease laloc mem", "fabricctl lease"),
            ("fetch", "fabricctl"),
        ];
        for (line, command) in cases {
            let given: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(named_command(&given), command, "{line}");
        }
    }
}
