//! `cargo xtask lab` and `cargo xtask setup`.

use crate::cargo::Profile;
use anyhow::{Result, bail};
use clap::Args;
use fabricbios_testbed::requirements::{self, Consent, Missing, Need};
use fabricbios_testbed::{Accelerator, Disk, Echo, Job, Lab, Layout, Prelude, Processors, System};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// The arguments of `cargo xtask lab`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Boot two guests, `node` and `client`, joined by a link, and run the command in both.
    /// LAB_ROLE, LAB_ADDRESS and LAB_PEER tell it where it is; /run/lab/share is common to both
    #[arg(long)]
    pair: bool,
    /// Make the soft-RoCE device rxe0 before the command
    #[arg(long)]
    rdma: bool,
    /// Give the guest a network card with virtual functions, pf0, behind an IOMMU, and a plain interface on the same
    /// wire, wire0
    #[arg(long, conflicts_with = "pair")]
    igb: bool,
    /// Make systemd process 1 of the guest, and run the command in a service
    #[arg(long)]
    systemd: bool,
    /// CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=255))]
    smp: u32,
    /// Sockets, cores of each socket, and threads of each core of the guest, such as 2x2x2
    #[arg(long, value_name = "SxCxT", conflicts_with = "smp")]
    topology: Option<Processors>,
    /// Divide the guest's CPUs and memory among so many NUMA nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    numa: u32,
    /// Memory of the guest, taken from the host as it is used
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = memory)]
    mem: String,
    /// Give the guest an empty disk, /dev/vda, of this many MiB; it goes with the guest
    #[arg(long, value_name = "MIB", conflicts_with = "pair")]
    disk: Option<u64>,
    /// Kill the guest after this many seconds (never for a shell)
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Let suites take the optimised programs (cargo build --release), not those for debugging
    #[arg(long)]
    release: bool,
    #[command(flatten)]
    boot: BootArguments,
    /// The command and its arguments, after --. Without one: a shell on this terminal
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The arguments of every command that boots guests.
#[derive(Debug, Args)]
pub(crate) struct BootArguments {
    /// Use hardware virtualisation without trying whether it works
    #[arg(long, conflicts_with = "tcg")]
    kvm: bool,
    /// Use emulation even where hardware virtualisation works
    #[arg(long)]
    tcg: bool,
    /// Install what is missing without asking
    #[arg(long)]
    yes: bool,
}

impl BootArguments {
    pub(crate) fn consent(&self) -> Consent {
        if self.yes {
            Consent::Given
        } else {
            Consent::Ask
        }
    }

    fn accelerator(&self) -> Option<Accelerator> {
        if self.kvm {
            return Some(Accelerator::Kvm);
        }
        self.tcg.then_some(Accelerator::Tcg)
    }

    /// The lab, ready to boot, after everything in `needs` is installed on the host.
    pub(crate) fn prepare(
        &self,
        layout: &Layout,
        needs: &[Need],
        say: &dyn Fn(&str),
    ) -> Result<Lab> {
        requirements::ensure(layout, needs, self.consent(), say)?;
        Lab::prepare(layout, self.accelerator(), say)
    }
}

fn memory(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    if number && text.len() - digits.len() == 1 {
        return Ok(text.to_owned());
    }
    Err("a number and one of K, M, G, for example 4G".to_owned())
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    check_terminal(arguments)?;
    let lab = arguments.boot.prepare(layout, &[Need::Guest], &say)?;
    let mut job = job(layout, arguments)?;
    let disk = arguments
        .disk
        .map(|mebibytes| Disk::create(layout, mebibytes << 20));
    let disk = disk.transpose()?;
    if let Some(disk) = &disk {
        disk.attach(&mut job);
    }
    if !arguments.pair {
        return Ok(exit_code(lab.run(&job)?.code));
    }
    let results = lab.pair([&job, &job])?;
    // The exit code of one guest says more than the end of the other guest, which was killed because of it.
    let mut codes = results.iter().flatten().map(|finished| finished.code);
    if let Some(code) = codes.find(|code| *code != 0) {
        return Ok(exit_code(code));
    }
    results
        .into_iter()
        .try_for_each(|result| result.map(|_| ()))?;
    Ok(ExitCode::SUCCESS)
}

fn check_terminal(arguments: &Arguments) -> Result<()> {
    if !arguments.command.is_empty() {
        return Ok(());
    }
    if arguments.pair {
        bail!("two guests cannot share this terminal: give the command to run in both after --");
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        bail!("a shell needs a terminal: give a command after --");
    }
    eprintln!("A shell in the guest. Leave it with exit; Ctrl-A X ends the guest at once.");
    Ok(())
}

fn job(layout: &Layout, arguments: &Arguments) -> Result<Job> {
    let shell = arguments.command.is_empty();
    let mut job = Job::new("lab", &["bash", "-i"]);
    if !shell {
        job.command.clone_from(&arguments.command);
    }
    job.echo = if shell { Echo::Terminal } else { Echo::Plain };
    job.timeout = (!shell).then(|| Duration::from_secs(arguments.timeout));
    let processors = arguments.topology;
    let processors = processors.unwrap_or_else(|| Processors::cores(arguments.smp));
    job.vm.processors = processors.in_nodes(arguments.numa)?;
    job.vm.memory.clone_from(&arguments.mem);
    if arguments.rdma {
        job.preludes.push(if arguments.pair {
            Prelude::LinkRoce
        } else {
            Prelude::SoftRoce
        });
    }
    job.systemd = arguments.systemd;
    if arguments.igb {
        job.add_igb();
    }
    let profile = match arguments.release {
        true => Profile::Release,
        false => Profile::Debug,
    };
    let programs = profile.programs(layout).display().to_string();
    job.environment
        .push(("FABRICBIOS_BIN".to_owned(), programs));
    Ok(job)
}

/// A shell's view of an exit code: eight bits.
fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

pub(crate) fn say(step: &str) {
    eprintln!("lab: {step}");
}

/// The arguments of `cargo xtask setup`.
#[derive(Debug, Args)]
pub(crate) struct SetupArguments {
    /// Install it
    #[arg(long)]
    yes: bool,
}

pub(crate) fn setup(layout: &Layout, arguments: &SetupArguments) -> Result<ExitCode> {
    if arguments.yes {
        requirements::ensure(layout, &Need::ALL, Consent::Given, &say)?;
    }
    let missing = Missing::find(layout, &Need::ALL)?;
    if missing.is_empty() {
        println!("this host has everything that the lab and the tests need");
        return Ok(ExitCode::SUCCESS);
    }
    println!("this host lacks\n{missing}\nto be installed by\n");
    println!(
        "  {}",
        missing.plan(layout, &System::current()?).join("\n  ")
    );
    Ok(ExitCode::FAILURE)
}
