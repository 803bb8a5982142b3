//! Launches that nothing waits for until one wait at the end, against the bare driver in turns of one run.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fabricbios_client::{Argument, GpuModule, GpuSession, LocalOptions, wire::GpuBinding};
use fabricbios_gpu::driver::{Arguments as Words, Context, Image, Module, Shape, Stream};

use crate::{Arguments, bare, kernels::SPIN, node::Daemon, report::Report, scenarios::lease};

/// Launches before the wait.
pub(crate) const AHEAD: u32 = 64;
/// What a kernel takes on the device of the stand-ins, in nanoseconds; cycles elsewhere. The empty kernel shows what all else
/// costs, the stand-ins' own calls too.
const KERNELS: [(&str, u64); 2] = [("launches", 10_000), ("empty", 0)];

/// Compares sessions over the local socket and over the network with the bare driver.
pub(crate) fn ahead(arguments: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let tenant = daemon.tenant("blue")?;
    let held = lease(&tenant, 600)?;
    let options = LocalOptions::default();
    let socket = daemon.local_socket();
    let local = Session::open(GpuSession::local_with(&held.lease_id(), socket, options)?)?;
    let network = Session::open(GpuSession::new(&held)?)?;
    let binding = held.binding();
    let mut bare = Bare::start(binding.gpu().context("the binding of a GPU")?)?;
    for (name, cycles) in KERNELS {
        let mut times = [(); 3].map(|()| Vec::new());
        let mut wakes = Vec::new();
        // The first round warms up.
        for round in 0..=arguments.rounds {
            for side in [0, 1, 2].map(|side| (side + round) % 3) {
                let before = daemon.wakes()?;
                let took = match side {
                    0 => bare.round(cycles)?,
                    1 => local.round(cycles)?,
                    _ => network.round(cycles)?,
                };
                if round > 0 {
                    times[side].push(took.as_secs_f64() * 1e6);
                }
                if side == 2 {
                    wakes.push((daemon.wakes()? - before) as f64);
                }
            }
        }
        let [bare, local, network] = times;
        let of = format!("{AHEAD} launches and one wait, {} µs each", cycles / 1_000);
        for (way, ours) in [("local", local), ("network", network)] {
            report.pairs(
                &format!("{name}-{way}"),
                &format!("{of}, {way}"),
                ours,
                bare.clone(),
            );
        }
        let what = format!("{of}, network: the node's threads wake up");
        report.figure(&what, "times", wakes);
    }
    bare.end()?;
    drop(local);
    network.session.close()?;
    held.free()?;
    Ok(())
}

/// A session with the module.
struct Session {
    module: GpuModule,
    session: GpuSession,
}

impl Session {
    fn open(session: GpuSession) -> Result<Self> {
        let module = session.module_load(SPIN)?;
        Ok(Self { module, session })
    }

    fn round(&self, cycles: u64) -> Result<Duration> {
        let (arguments, began) = ([Argument::from(cycles)], Instant::now());
        for _ in 0..AHEAD {
            self.session
                .launch(&self.module, "spin", [1; 3], [1; 3], 0, &arguments)?;
        }
        self.session.sync()?;
        Ok(began.elapsed())
    }
}

/// The bare driver in a process of its own, which does a round for each line.
struct Bare {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Bare {
    fn start(of: &GpuBinding) -> Result<Self> {
        let mut child = bare::start(of, &["launches"])?;
        let input = child.stdin.take().context("the input of the bare driver")?;
        let output = child.stdout.take().context("the bare driver's output")?;
        let output = BufReader::new(output);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    fn round(&mut self, cycles: u64) -> Result<Duration> {
        writeln!(self.input, "{cycles}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let nanos = line.trim().parse();
        Ok(Duration::from_nanos(
            nanos.context("the bare driver's time")?,
        ))
    }

    /// Ends the process and waits: a device has no other user when its lease ends.
    fn end(mut self) -> Result<()> {
        drop(self.input);
        ensure!(self.child.wait()?.success(), "the bare driver has failed");
        Ok(())
    }
}

/// The bare driver's rounds: each line of the input is a number of cycles, each of the output the nanoseconds of a round.
pub(crate) fn serve(context: &Context) -> Result<()> {
    let module = Arc::new(Module::load(context, &Image::of(SPIN.to_vec()))?);
    let (kernel, mut words) = (module.kernel("spin")?, Words::default());
    let mut stream = Stream::new(context, 1)?;
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    for line in io::stdin().lines() {
        let cycles: u64 = line?.trim().parse()?;
        let began = Instant::now();
        for _ in 0..AHEAD {
            words.set(&[cycles.to_le_bytes().to_vec()]);
            stream.launch(&kernel, shape, &mut words)?;
        }
        stream.synchronize()?;
        println!("{}", began.elapsed().as_nanos());
    }
    Ok(())
}
