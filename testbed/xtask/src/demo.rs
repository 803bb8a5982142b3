//! `cargo xtask demo`: the life of a lease, over RDMA and over UDP, on soft-RoCE in a guest or on the
//! host's own devices. If the host cannot run a guest, the demo shows the part that needs none.

use crate::cargo::{self, Profile};
use crate::lab::BootArguments;
use crate::progress::Progress;
use crate::suites::GUEST_DIRECTORY;
use crate::wheels::PYTHON;
use anyhow::{Context, Result, bail};
use clap::Args;
use fabricbios_testbed::requirements::{self, Need};
use fabricbios_testbed::{Echo, Job, Lab, Layout, Prelude};
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Debug, because the build takes most of the time and the daemon is not on the data path.
const PROFILE: Profile = Profile::Debug;
const RDMA_CLASS: &str = "/sys/class/infiniband";

/// The arguments of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Use this host's own RDMA devices instead of a guest (needs root)
    #[arg(long)]
    here: bool,
    /// Show only what needs neither RDMA, root nor a guest: memory over UDP
    #[arg(long, conflicts_with = "here")]
    udp: bool,
    #[command(flatten)]
    boot: BootArguments,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let scripts = layout.repository().join(GUEST_DIRECTORY);
    let script = scripts.join("demo.py");
    let over_udp = scripts.join("demo_udp.py");
    if arguments.here {
        return here(layout, &script);
    }
    if arguments.udp {
        return without_guest(layout, &over_udp, &arguments.boot);
    }
    let progress = Progress::start();
    let needs = [Need::Guest, Need::Build];
    let lab = arguments
        .boot
        .prepare(layout, &needs, &|step| progress.step(step));
    match lab {
        Ok(lab) => in_guest(layout, &script, &lab, &progress),
        Err(why) => {
            progress.clear();
            println!("There is no guest with soft-RoCE here: {why:#}\n");
            println!(
                "Left out: RDMA keys, queue pairs and windows. Shown instead, on this host as it is: \
                 the same leases over UDP."
            );
            without_guest(layout, &over_udp, &arguments.boot)
        }
    }
}

/// Runs the demo on any host, as any user.
fn without_guest(layout: &Layout, script: &Path, boot: &BootArguments) -> Result<ExitCode> {
    let needs = [Need::Build, Need::Python];
    requirements::ensure(layout, &needs, boot.consent(), &crate::lab::say)?;
    let progress = Progress::start();
    progress.run("building", cargo::build_programs(layout, PROFILE)?)?;
    progress.clear();
    run_script(layout, script)
}

fn in_guest(layout: &Layout, script: &Path, lab: &Lab, progress: &Progress) -> Result<ExitCode> {
    progress.run("building", cargo::build_programs(layout, PROFILE)?)?;
    progress.step("booting the lab kernel");
    let mut job = Job::new("demo", &[PYTHON, &script.display().to_string()]);
    job.preludes.push(Prelude::SoftRoce);
    job.environment
        .push(("FABRICBIOS_BIN".to_owned(), programs(layout)));
    let kernel = lab.kernel_release().to_owned();
    job.echo = echo_after(progress.clone(), format!("booted {kernel} with soft-RoCE"));
    let result = lab.run(&job);
    progress.clear();
    Ok(if result?.code == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The demo's own output replaces the spinner with its first line.
fn echo_after(progress: Progress, booted: String) -> Echo {
    let started = AtomicBool::new(false);
    Echo::Call(Arc::new(move |bytes| {
        if !started.swap(true, Ordering::Relaxed) {
            progress.done(&booted);
            progress.clear();
        }
        let mut out = std::io::stdout().lock();
        // A closed terminal is no reason to end the guest.
        drop(out.write_all(bytes).and_then(|()| out.flush()));
    }))
}

fn here(layout: &Layout, script: &Path) -> Result<ExitCode> {
    let devices = std::fs::read_dir(RDMA_CLASS)
        .map(Iterator::count)
        .unwrap_or_default();
    if devices == 0 {
        bail!(
            "this host has no RDMA device ({RDMA_CLASS} is empty or absent). Leave out --here to \
             use soft-RoCE in a guest, or make one: rdma link add rxe0 type rxe netdev INTERFACE"
        );
    }
    if !is_root()? {
        bail!("memory windows and locked memory need root here: run this as root");
    }
    let progress = Progress::start();
    progress.run("building", cargo::build_programs(layout, PROFILE)?)?;
    progress.clear();
    run_script(layout, script)
}

fn run_script(layout: &Layout, script: &Path) -> Result<ExitCode> {
    let mut demo = Command::new(PYTHON);
    demo.arg(script)
        .env("FABRICBIOS_BIN", programs(layout))
        .current_dir(layout.repository());
    let status = demo
        .status()
        .with_context(|| format!("cannot start {PYTHON}"))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn programs(layout: &Layout) -> String {
    PROFILE.programs(layout).display().to_string()
}

fn is_root() -> Result<bool> {
    let output = Command::new("id")
        .arg("-u")
        .output()
        .context("cannot start id")?;
    Ok(output.stdout == b"0\n")
}
