//! The lab: a prepared kernel and a way to run it, once or as a pair.

use crate::accelerator;
use crate::apt::Apt;
use crate::guest::{Echo, Ending, Finished, Guest, nap};
use crate::job::{Job, Place, Prelude};
use crate::kernel::Kernel;
use crate::machine::{Accelerator, Nic};
use crate::run_directory::RunDirectory;
use crate::system::System;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the other guest of a pair may continue after one has failed.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(10);
/// How long QEMU may take to make the socket of the link.
const LINK_DEADLINE: Duration = Duration::from_secs(20);

/// The socket between two guests, in the run directory of the first. Relative, because the path of
/// a Unix socket has room for some hundred bytes only.
const LINK: &str = "link";

/// The two ends of a pair: name, address on the link, and Ethernet address.
const ENDS: [(&str, &str, &str); 2] = [
    ("node", "192.168.77.1", "52:54:00:77:00:01"),
    ("client", "192.168.77.2", "52:54:00:77:00:02"),
];

/// Directory names under the target directory.
#[derive(Debug, Clone)]
pub struct Layout {
    repository: PathBuf,
    target: PathBuf,
    tools: PathBuf,
}

impl Layout {
    /// The directories of the checkout at `repository`. Builds go to its `target` directory or to
    /// `CARGO_TARGET_DIR`.
    #[must_use]
    pub fn new(repository: &Path) -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        let target = repository.join(target);
        Self {
            repository: repository.to_owned(),
            tools: target.join("tools"),
            target,
        }
    }

    /// Another checkout, with a target directory of its own and the tools of this one.
    #[must_use]
    pub fn elsewhere(&self, repository: &Path) -> Self {
        Self {
            repository: repository.to_owned(),
            target: repository.join("target"),
            tools: self.tools.clone(),
        }
    }

    /// The checkout.
    #[must_use]
    pub fn repository(&self) -> &Path {
        &self.repository
    }

    /// Cargo's target directory.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Cargo tools that were installed for this checkout only.
    #[must_use]
    pub fn tools(&self) -> PathBuf {
        self.tools.clone()
    }

    /// One directory per failed run, and one per suite that ran twice.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.lab().join("logs")
    }

    /// A new directory in [`Layout::logs`]. It is removed when 30 newer ones are there.
    pub fn keep(&self, name: &str) -> Result<PathBuf> {
        let directory = RunDirectory::create(&self.logs(), name)?;
        Ok(directory.path().to_owned())
    }

    pub(crate) fn lab(&self) -> PathBuf {
        self.target.join("lab")
    }

    pub(crate) fn apt(&self) -> PathBuf {
        self.lab().join("apt")
    }

    pub(crate) fn setup_log(&self) -> PathBuf {
        self.logs().join("setup.log")
    }
}

/// A kernel that is ready to boot on this host.
#[derive(Debug)]
pub struct Lab {
    layout: Layout,
    kernel: Kernel,
    accelerator: Accelerator,
}

impl Lab {
    /// Fetches the kernel if it is missing, and chooses the accelerator. `forced` skips the choice.
    /// `say` gets a line for each long step.
    pub fn prepare(
        layout: &Layout,
        forced: Option<Accelerator>,
        say: &dyn Fn(&str),
    ) -> Result<Self> {
        let directory = layout.lab();
        std::fs::create_dir_all(&directory)?;
        // Two parallel runs must not both fetch the kernel.
        let lock = File::create(directory.join("lock"))?;
        lock.lock().context("cannot lock the lab directory")?;
        let kernels = directory.join("kernel");
        let kernel = match Kernel::find(&kernels) {
            Some(kernel) => kernel,
            None => {
                say("fetching the lab kernel from Debian (once)");
                let log = layout.setup_log();
                let apt = Apt::prepare(&layout.apt(), &log, &System::current()?)?;
                Kernel::fetch(&kernels, &apt, &log).context("cannot prepare the lab kernel")?
            }
        };
        let accelerator = match forced {
            Some(accelerator) => accelerator,
            None => accelerator::choose(&directory, &kernel, say)?,
        };
        Ok(Self {
            layout: layout.clone(),
            kernel,
            accelerator,
        })
    }

    /// Release of the kernel that guests run.
    #[must_use]
    pub fn kernel_release(&self) -> &str {
        &self.kernel.release
    }

    /// The accelerator of the guests.
    #[must_use]
    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Boots one guest and waits for its command. If the guest ends without its command's exit code, the error has the
    /// end of its console. A guest that did not come up, and so has not begun its command, is booted once more.
    pub fn run(&self, job: &Job) -> Result<Finished> {
        let mut guest = self.booted(job)?;
        let ending = guest.wait()?;
        let (result, directory) = guest.finish(&ending);
        directory.close(succeeded(&result))?;
        result
    }

    /// One guest whose command has begun.
    pub(crate) fn booted(&self, job: &Job) -> Result<Guest> {
        let booted = match self.boot(job)? {
            Err((Ending::NotBooted, error)) => {
                eprintln!("{error:#}\nIt is booted once more.");
                self.boot(job)?
            }
            booted => booted,
        };
        booted.map_err(|(_, error)| error)
    }

    fn boot(&self, job: &Job) -> Result<std::result::Result<Guest, (Ending, anyhow::Error)>> {
        let mut guest = self.start(job, None)?;
        while !guest.has_begun() {
            let Some(ending) = guest
                .poll()?
                .filter(|ending| !matches!(ending, Ending::Code(_)))
            else {
                nap();
                continue;
            };
            let (result, directory) = guest.finish(&ending);
            directory.close(false)?;
            let why = result
                .err()
                .context("the guest ended well without its command")?;
            return Ok(Err((ending, why)));
        }
        Ok(Ok(guest))
    }

    /// Boots two guests with a link between them, `node` first, and waits for both commands. They
    /// share one directory, `/run/lab/share`. When one fails, the other gets a little time to
    /// notice and is then killed. A killed guest is an error.
    pub fn pair(&self, jobs: [&Job; 2]) -> Result<[Result<Finished>; 2]> {
        let node = self.start(&end_of_pair(jobs[0], 0), None)?;
        let workplace = node.directory.path().to_owned();
        await_socket(&workplace.join(LINK))?;
        let client = self.start(&end_of_pair(jobs[1], 1), Some(&workplace))?;
        let ended = wait_for_both([node, client])?;
        // The directories are closed only now: until the other guest has ended, it uses the shared directory of the
        // first. And if one has failed, the logs of both are needed.
        let succeeded = ended.iter().all(|(result, _)| succeeded(result));
        for (_, directory) in &ended {
            directory.close(succeeded)?;
        }
        Ok(ended.map(|(result, _)| result))
    }

    /// `workplace` is the run directory of the other end of a pair, if that end was started first.
    fn start(&self, job: &Job, workplace: Option<&Path>) -> Result<Guest> {
        let directory = RunDirectory::create(&self.layout.logs(), &job.name)?;
        let place = Place {
            kernel: &self.kernel,
            directory: &self.layout.repository,
            nonce: directory.nonce(),
        };
        std::fs::write(directory.initramfs(), job.initramfs(&place)?)?;
        let workplace = workplace.unwrap_or(directory.path()).to_owned();
        let files = directory.files(&self.kernel.image, &workplace);
        let (echo, timeout) = (&job.echo, job.timeout);
        Guest::start(
            &job.vm,
            self.accelerator,
            &files,
            &workplace,
            directory,
            echo,
            timeout,
        )
    }
}

fn succeeded(result: &Result<Finished>) -> bool {
    result.as_ref().is_ok_and(|finished| finished.code == 0)
}

fn end_of_pair(job: &Job, end: usize) -> Job {
    let (role, address, mac) = ENDS[end];
    let server = if end == 0 { "on" } else { "off" };
    let netdev = format!("stream,server={server},addr.type=unix,addr.path={LINK}");
    let mut job = job.clone();
    job.name = format!("{}-{role}", job.name);
    job.vm.nics.insert(
        0,
        Nic {
            netdev,
            mac: mac.to_owned(),
        },
    );
    job.preludes.insert(0, Prelude::Link);
    for (name, value) in [
        ("LAB_ROLE", role),
        ("LAB_ADDRESS", address),
        ("LAB_PEER", ENDS[1 - end].1),
    ] {
        job.environment.push((name.to_owned(), value.to_owned()));
    }
    job.echo = Echo::Prefixed(format!("{role:6}"), Box::new(job.echo));
    job
}

fn await_socket(socket: &Path) -> Result<()> {
    let start = Instant::now();
    while !socket.exists() {
        anyhow::ensure!(
            start.elapsed() < LINK_DEADLINE,
            "QEMU did not make the link between the two guests ({})",
            socket.display()
        );
        nap();
    }
    Ok(())
}

type Ended = (Result<Finished>, RunDirectory);

fn wait_for_both(guests: [Guest; 2]) -> Result<[Ended; 2]> {
    let mut running = guests.map(Some);
    let mut ended: [Option<Ended>; 2] = [None, None];
    let mut give_up_at: Option<Instant> = None;
    loop {
        for (running, ended) in running.iter_mut().zip(&mut ended) {
            let Some(guest) = running else { continue };
            let late = give_up_at.is_some_and(|at| Instant::now() > at);
            let ending = if late {
                Some(Ending::Abandoned)
            } else {
                guest.poll()?
            };
            let Some(ending) = ending else { continue };
            *ended = running.take().map(|guest| guest.finish(&ending));
            if !ended.as_ref().is_some_and(|(result, _)| succeeded(result)) {
                give_up_at.get_or_insert(Instant::now() + GRACE_AFTER_FAILURE);
            }
        }
        match ended {
            [Some(node), Some(client)] => return Ok([node, client]),
            unfinished => ended = unfinished,
        }
        nap();
    }
}
