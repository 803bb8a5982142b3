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
use roff::{Roff, bold, roman};

/// The shells, and how each names the completions of a program.
const SHELLS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "", ""),
    (Shell::Zsh, "_", ""),
    (Shell::Fish, "", ".fish"),
];

/// Files of the installed packages, as `fabricbiosd(8)` lists them.
const NODE_FILES: &[(&str, &str)] = &[
    (
        "/etc/fabricbios/node.toml",
        "The settings of the node: each flag of fabricbiosd-control-server(8) under its name.",
    ),
    (
        "/var/lib/fabricbios",
        "The state directory: the journal of leases and fences, and the node's identity. A copy of an older journal is refused; docs/backup.md says what to back up.",
    ),
    (
        "/var/lib/fabricbios/admin.identity",
        "The identity of the first operator of a node alone. Whoever reads it operates the node.",
    ),
    (
        "/run/fabricbios/local.sock",
        "Where users of this machine enter leases of CPU cores and network functions.",
    ),
    (
        "/usr/share/doc/fabricbios-node/examples",
        "Settings for each kind of hardware, alert rules and a dashboard.",
    ),
    (
        "/usr/share/doc/fabricbios-node/docs/operator.md",
        "The operator's pages: installation, metrics, upgrade, backup, troubleshooting.",
    ),
];
const SCHEDULER_FILES: &[(&str, &str)] = &[
    (
        "/etc/default/fabricbios-scheduler",
        "The flags of the service.",
    ),
    (
        "/etc/fabricbios/scheduler.identity",
        "The identity of the scheduler, from fabricctl-fabric-init(1) or fabricctl-fabric-sign(1).",
    ),
    (
        "/run/fabricbios-scheduler/page.url",
        "The address at which root logs in to the page, while --http-listen is in use.",
    ),
];
const CLIENT_FILES: &[(&str, &str)] = &[
    (
        "/run/fabricbios/local.sock",
        "The socket of a node of this machine, for fabricctl-run(1) and its like.",
    ),
    (
        "/run/fabricbios-attach",
        "Records of the block devices that fabricctl-block-attach(1) has made.",
    ),
];

/// An installed program, and what its page lists besides the command line.
struct Program {
    command: Command,
    section: &'static str,
    files: &'static [(&'static str, &'static str)],
    see_also: &'static str,
}

fn main() -> anyhow::Result<()> {
    let out = env::args_os().nth(1).context("usage: manuals DIRECTORY")?;
    let out = PathBuf::from(out);
    let programs = [
        Program {
            command: fabricbios_node::settings::Cli::command(),
            section: "8",
            files: NODE_FILES,
            see_also: "fabricctl(1), fabricbios-scheduler(8), systemctl(1)",
        },
        Program {
            command: fabricbios_scheduler::Cli::command(),
            section: "8",
            files: SCHEDULER_FILES,
            see_also: "fabricctl(1), fabricbiosd(8), etcd(1)",
        },
        Program {
            command: fabricbios_cli::command(),
            section: "1",
            files: CLIENT_FILES,
            see_also: "fabricbiosd(8), fabricbios-scheduler(8), nvme(1), rdma(8)",
        },
    ];
    for mut program in programs {
        let name = program.command.get_name().to_owned();
        let mut command = program.command.clone();
        for (shell, before, after) in SHELLS {
            let at = out.join("completions").join(shell.to_string());
            let mut file = create(&at, &format!("{before}{name}{after}"))?;
            clap_complete::generate(shell, &mut command, &name, &mut file);
        }
        program.command = without_help(program.command);
        program.command.build();
        pages(&program.command, &name, None, &program, &out.join("man"))?;
    }
    Ok(())
}

/// The command without `help`, which has no page of its own.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

/// Writes the page of a command, and those of its subcommands: `fabricctl-lease-alloc.1`. `above`: the page of the command
/// that has this one.
fn pages(
    command: &Command,
    name: &str,
    above: Option<&str>,
    program: &Program,
    at: &Path,
) -> anyhow::Result<()> {
    let section = program.section;
    for sub in command.get_subcommands() {
        if !sub.is_hide_set() {
            let its = format!("{name}-{}", sub.get_name());
            pages(sub, &its, Some(name), program, at)?;
        }
    }
    let mut file = create(at, &format!("{name}.{section}"))?;
    let page = Man::new(command.clone()).title(name).section(section);
    page.render(&mut file).context("write a page")?;
    let mut more = Roff::new();
    let see_also = match above {
        Some(above) => format!("{above}({section})"),
        None => {
            more.control("SH", ["FILES"]);
            for (path, content) in program.files {
                more.control("TP", [])
                    .text([bold(*path)])
                    .text([roman(*content)]);
            }
            program.see_also.to_owned()
        }
    };
    more.control("SH", ["SEE ALSO"]).text([roman(see_also)]);
    more.to_writer(&mut file).context("write a page")
}

fn create(directory: &Path, name: &str) -> anyhow::Result<File> {
    fs::create_dir_all(directory)?;
    let path = directory.join(name);
    File::create(&path).with_context(|| format!("create {}", path.display()))
}
