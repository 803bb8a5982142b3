//! Grants and cuts of CPU cores, compared with a shell script that makes the same control groups. Needs root and
//! control groups with cpusets; `cargo xtask lab --topology 1x2x1 -- target/release/fabricbios-bench cpu` provides
//! both. testbed/guest/bench_cpu.py measures how long a program in a lease waits for its core.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use fabricbios_client::Node;
use fabricbios_wire::{CpuBinding, CpuIsolationClass, CpuTerms, LeaseInfo};

use crate::{
    cycles::{Cycle, RELEASE_MAX, compare, cut, grant, script},
    daemon::Daemon,
    place::runtime,
};

/// The file with the CPUs of best_effort leases, beside the control groups of whole cores.
const SHARED: &str = "shared/cpuset.cpus";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each class
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = tempfile::tempdir()?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let daemon = Daemon::start(place.path(), "--mem-bytes=1MiB --cpus=all")?;
    let tenant = daemon.tenant("bench")?;
    for class in [CpuIsolationClass::BestEffort, CpuIsolationClass::WholeCore] {
        println!("\n{class}; each cut ends a busy process");
        let cores = Cores::of(&tenant, class)?;
        let sides = ["lease", "shell script"];
        let name = format!("cpu/{class}");
        compare(
            &name,
            options.rounds,
            sides,
            || cores.leased(),
            || cores.by_hand(),
        )?;
    }
    Ok(())
}

/// Leases of one core, and the parts that they consist of.
struct Cores<'a> {
    tenant: &'a Node,
    class: CpuIsolationClass,
    /// The directory in which the control groups are made.
    parent: PathBuf,
    binding: CpuBinding,
    /// The CPUs that remain for best_effort leases while one whole core is leased.
    left: String,
}

impl<'a> Cores<'a> {
    fn of(tenant: &'a Node, class: CpuIsolationClass) -> anyhow::Result<Self> {
        let (lease, _) = core(tenant, class)?;
        let binding = binding(&lease)?.clone();
        let parent = Path::new(&binding.cgroup).parent();
        let parent = parent.context("a cgroup without a parent")?.to_path_buf();
        let left = match class {
            CpuIsolationClass::BestEffort => String::new(),
            _ => fs::read_to_string(parent.join(SHARED))?.trim().to_owned(),
        };
        let cores = Self {
            tenant,
            class,
            parent,
            binding,
            left,
        };
        cut(tenant, &lease)?;
        cores.wait_for_release(&lease)?;
        Ok(cores)
    }

    fn leased(&self) -> anyhow::Result<Cycle> {
        let (lease, granted) = core(self.tenant, self.class)?;
        let mut busy = Busy::start(Path::new(&binding(&lease)?.cgroup))?;
        let took = cut(self.tenant, &lease)?;
        busy.ensure_killed()?;
        self.wait_for_release(&lease)?;
        Ok((granted, took))
    }

    /// Waits until the CPUs are free again. Otherwise the shell script would make a partition of CPUs that are not back
    /// yet.
    fn wait_for_release(&self, lease: &LeaseInfo) -> anyhow::Result<()> {
        let cgroup = Path::new(&binding(lease)?.cgroup);
        let is_shared = self.class == CpuIsolationClass::BestEffort;
        let began = Instant::now();
        while cgroup.exists()
            || !is_shared && fs::read_to_string(self.parent.join(SHARED))?.trim() == self.left
        {
            ensure!(began.elapsed() < RELEASE_MAX, "{} stays", cgroup.display());
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn by_hand(&self) -> anyhow::Result<Cycle> {
        let (parent, left) = (self.parent.display(), &self.left);
        let CpuBinding { partition, .. } = self.binding;
        let cpus: Vec<_> = self.binding.cpus.iter().map(ToString::to_string).collect();
        let cpus = cpus.join(",");
        let (make, remove) = match self.binding.quota {
            Some(quota) => (
                format!(
                    "cd {parent}\nmkdir by-hand\necho {} {} > by-hand/cpu.max",
                    quota.quota_us, quota.period_us
                ),
                format!("rmdir {parent}/by-hand"),
            ),
            None => (
                format!(
                    "cd {parent}\necho {left} > {SHARED}\nmkdir by-hand\ncd by-hand\necho {cpus} > cpuset.cpus\n\
                     echo 0 > cpuset.mems\necho {cpus} > cpuset.cpus.exclusive\n\
                     echo {partition} > cpuset.cpus.partition\nread found < cpuset.cpus.partition\n\
                     [ $found = {partition} ]"
                ),
                format!(
                    "cd {parent}\necho member > by-hand/cpuset.cpus.partition\nrmdir by-hand\necho {left},{cpus} > {SHARED}"
                ),
            ),
        };
        let granted = script(&make)?;
        let mut busy = Busy::start(&self.parent.join("by-hand"))?;
        let took = script(&format!(
            "cd {parent}/by-hand\necho 1 > cgroup.freeze\necho 1 > cgroup.kill\n\
             while read key is_populated < cgroup.events; [ $is_populated = 1 ]; do :; done"
        ))?;
        busy.ensure_killed()?;
        script(&remove)?;
        Ok((granted, took))
    }
}

fn core(tenant: &Node, class: CpuIsolationClass) -> anyhow::Result<(LeaseInfo, Duration)> {
    let terms = CpuTerms {
        isolation: Some(class),
        ..CpuTerms::default()
    };
    grant(tenant, 1, terms)
}

fn binding(lease: &LeaseInfo) -> anyhow::Result<&CpuBinding> {
    lease.binding.cpu().context("the lease has no cgroup")
}

/// A busy process in a control group.
struct Busy(Child);

impl Busy {
    /// Starts the process, and returns when it is in the control group.
    fn start(cgroup: &Path) -> anyhow::Result<Self> {
        let script = format!(
            "echo $$ > {}/cgroup.procs\necho\nwhile :; do :; done",
            cgroup.display()
        );
        let mut command = Command::new("sh");
        let command = command.args(["-ec", &script]).stdout(Stdio::piped());
        let mut busy = Self(command.spawn().context("start sh")?);
        let output = busy.0.stdout.as_mut();
        let output = output.context("a process without output")?;
        output.read_exact(&mut [0]).context("a busy process")?;
        Ok(busy)
    }

    fn ensure_killed(&mut self) -> anyhow::Result<()> {
        let status = self.0.wait()?;
        ensure!(
            status.code().is_none(),
            "a busy process ended with {status}"
        );
        Ok(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
