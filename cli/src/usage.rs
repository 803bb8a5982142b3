//! Wrong arguments, in one line.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::error::ErrorKind;

use crate::{failure::Failure, output::Output};

/// Prints help where it was asked for, else what was wrong.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => show(error),
        // Without a command the list of commands is the answer.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            show(error);
            ExitCode::from(2)
        }
        _ => {
            let json = env::args_os().any(|arg| arg == "--json");
            Failure::usage(one_line(&error.to_string())).report(Output::new(json))
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

/// clap explains in paragraphs; the last ones are usage and a pointer to help.
fn one_line(text: &str) -> String {
    let useful = text.lines().take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let words: Vec<&str> = useful.flat_map(str::split_whitespace).collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    format!("{line}; see `fabricctl --help`")
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
            let line = one_line(&Args::try_parse_from(args).unwrap_err().to_string());
            assert!(!line.contains('\n') && line.len() > 40, "{line}");
        }
    }
}
