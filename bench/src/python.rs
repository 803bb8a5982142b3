//! `read_into` of the Python package against `read` of the SDK, of the same daemon over UDP.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use fabricbios_client::MemBuilder;

use crate::{daemon::Daemon, figure::Figure, pairs::interleaved_pairs, place::place_in};

/// Bytes of one transfer.
const BYTES: usize = 64 << 20;
/// Leases, fills and reads; each line on its input is one round, whose nanoseconds it prints.
const PROGRAM: &str = "import sys, time, fabricbios
with fabricbios.mem(bytes=int(sys.argv[1])) as m:
    into = bytearray(len(m))
    m.write(0, into)
    print(0, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter_ns()
        m.read_into(0, into)
        print(time.perf_counter_ns() - start, flush=True)
";

/// Options of the bench `python`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Pairs of transfers
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Where the daemon keeps its state
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// The Python that has the package: `cargo xtask bench` makes this one, with an optimised wheel
    #[arg(long, default_value = "target/wheels/release/installed/bin/python")]
    python: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let daemon = Daemon::start(place.path(), "--mem-bytes=256MiB")?;
    let tenant = daemon.tenant("bench")?;
    let lease = MemBuilder::new()
        .bytes(BYTES as u64)
        .on(&tenant)
        .acquire()?;
    let mut into = vec![0; BYTES];
    lease.write(0, &into)?;
    let mut python = Python::start(options, &daemon)?;
    let pairs = interleaved_pairs(
        options.rounds,
        || {
            let start = Instant::now();
            lease.read(0, &mut into)?;
            Ok(start.elapsed())
        },
        || python.round(),
    )?;
    lease.free()?;
    println!(
        "64 MiB over UDP, each side from a lease of its own; the ratio is that of the throughputs, Python's to Rust's"
    );
    pairs.print("read of the SDK", "read_into of the Python package");
    Figure::record_rates(
        "python/read_into",
        "read_into of the Python package, 64 MiB over UDP",
        (&pairs.b, &pairs.a, "read of the SDK"),
        (BYTES >> 20) as f64,
        "MiB/s",
    )
}

/// The other side: a Python process.
struct Python {
    child: Child,
    rounds: Option<ChildStdin>,
    times: BufReader<ChildStdout>,
}

impl Python {
    fn start(options: &Options, daemon: &Daemon) -> anyhow::Result<Self> {
        let mut command = Command::new(&options.python);
        command
            .args(["-c", PROGRAM, &BYTES.to_string()])
            .env("FABRICBIOS_NODE", daemon.address())
            .env("FABRICBIOS_IDENTITY", daemon.identity("bench"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let shown = options.python.display();
        let started = command.spawn();
        let mut child =
            started.with_context(|| format!("{shown}: `cargo xtask bench` makes it"))?;
        let times = child.stdout.take().context("a child without output")?;
        let rounds = child.stdin.take();
        let mut python = Self {
            child,
            rounds,
            times: BufReader::new(times),
        };
        python.answer()?;
        Ok(python)
    }

    fn round(&mut self) -> anyhow::Result<Duration> {
        let mut rounds = self.rounds.as_ref().context("a child without input")?;
        rounds.write_all(b"\n")?;
        self.answer()
    }

    fn answer(&mut self) -> anyhow::Result<Duration> {
        let mut line = String::new();
        if self.times.read_line(&mut line)? == 0 {
            bail!("the Python program has ended; its standard error says why");
        }
        Ok(Duration::from_nanos(line.trim().parse()?))
    }
}

/// The end of its input ends the program, which gives its lease back.
impl Drop for Python {
    fn drop(&mut self) {
        drop(self.rounds.take());
        self.child.wait().ok();
    }
}
