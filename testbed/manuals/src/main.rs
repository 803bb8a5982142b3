//! Writes man pages and shell completions of the installed programs into a directory, from their command lines:
//! `man/NAME.SECTION` and `completions/SHELL/…`, under the names that Debian's shells look for.
#![forbid(unsafe_code)]

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

/// The shells, and how each names the completions of a program.
const SHELLS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "", ""),
    (Shell::Zsh, "_", ""),
    (Shell::Fish, "", ".fish"),
];

fn main() -> anyhow::Result<()> {
    let out = env::args_os().nth(1).context("usage: manuals DIRECTORY")?;
    let out = PathBuf::from(out);
    let programs = [
        (fabricbios_node::settings::Cli::command(), "8"),
        (fabricbios_scheduler::Cli::command(), "8"),
        (fabricbios_cli::command(), "1"),
    ];
    for (mut command, section) in programs {
        let name = command.get_name().to_owned();
        for (shell, before, after) in SHELLS {
            let at = out.join("completions").join(shell.to_string());
            let mut file = create(&at, &format!("{before}{name}{after}"))?;
            clap_complete::generate(shell, &mut command, &name, &mut file);
        }
        command.build();
        pages(&command, &name, section, &out.join("man"))?;
    }
    Ok(())
}

/// Writes the page of a command, and those of its subcommands: `fabricctl-lease-alloc.1`.
fn pages(command: &Command, name: &str, section: &str, at: &Path) -> anyhow::Result<()> {
    for sub in command.get_subcommands() {
        if !sub.is_hide_set() && sub.get_name() != "help" {
            let name = format!("{name}-{}", sub.get_name());
            pages(sub, &name, section, at)?;
        }
    }
    let mut file = create(at, &format!("{name}.{section}"))?;
    let page = Man::new(command.clone()).title(name).section(section);
    page.render(&mut file).context("write a page")
}

fn create(directory: &Path, name: &str) -> anyhow::Result<File> {
    fs::create_dir_all(directory)?;
    let path = directory.join(name);
    File::create(&path).with_context(|| format!("create {}", path.display()))
}
