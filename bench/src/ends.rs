//! Tens of thousands of leases of a loud tenant end in one second, and leases of a quiet tenant end among them. The
//! bench measures how late each lease of the quiet tenant is cut: a client reads until it is refused. The comparison is
//! the same run without the loud tenant. The tenants have no quotas, so that the bench measures the node without them.
//!
//! This is also a load test: it fails if a lease of the quiet tenant ended later than `--late-ms`, or if any
//! lease was fenced. On a machine on which the readers get no processor in time it measures nothing, and says so.

use std::{
    fmt,
    path::PathBuf,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use fabricbios_client::Node;
use fabricbios_fallback_udp::{ClientError, ClientOptions, Coordinates, MemoryClient};
use fabricbios_wire::{
    LeaseAllocRequest, LeaseId, LeaseInfo, LeasePhase, Reply, Request, ResourceType,
};

use crate::{
    churn::at_once,
    daemon::Daemon,
    figure::{Better, Of, record},
    place::{place_in, runtime},
    report::{Spread, percentile, sorted},
};

const LEASE_BYTES: u64 = 4096;
/// Time between two ends of the quiet tenant.
const STEP: Duration = Duration::from_millis(20);
/// A reader begins this long before the deadline.
const BEFORE: Duration = Duration::from_millis(30);
/// Pause between two reads of a lease, so that the readers are not the load.
const PAUSE: Duration = Duration::from_millis(1);
/// Niceness of the readers. A client on another machine would not compete for the processors of this machine.
const NICENESS: i32 = -20;
/// The quiet tenant's first lease ends this long before the loud tenant's second.
const LEAD: Duration = Duration::from_millis(500);

/// Term of the quiet tenant's leases: longer than granting them all takes.
const QUIET_SECS: u32 = 25;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leases of the loud tenant
    #[arg(long, default_value_t = 100_000)]
    leases: u32,
    /// Leases of the quiet tenant; one ends every 20 ms, from half a second before the others on
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    quiet: u32,
    /// Term of the loud tenant's first lease, seconds: time for all its grants, and for the quiet tenant's in the last
    /// half minute. The run takes this and 40 seconds more
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(30..=3000))]
    secs: u32,
    /// The run fails when a lease of the quiet tenant ended later than this
    #[arg(long, default_value_t = 20)]
    late_ms: u64,
    /// Where the state lies
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let runtime = runtime()?;
    // 64 more for the grants in between, because freed memory is available again only a moment later.
    let memory = u64::from(options.leases + options.quiet + 64) * LEASE_BYTES;
    let arguments = format!(
        "--mem-bytes={memory} --leases-per-tenant-max={} --requests-per-tenant-max=0",
        options.leases
    );
    let daemon = Daemon::start(place.path(), &arguments)?;
    let [quiet, loud] = [daemon.tenant("quiet")?, daemon.tenant("loud")?];

    let alone = watch(
        &quiet,
        options.quiet,
        Instant::now() + Duration::from_secs(u64::from(QUIET_SECS) + 1),
    )?;
    print!("quiet, nobody beside:\n{alone}");

    let begin = Instant::now();
    let end = begin + Duration::from_secs(options.secs.into());
    at_once(&runtime, options.leases, |_| grant(loud.clone(), end))?;
    println!(
        "{} leases of the loud tenant in {:.1} s; they end in one second",
        options.leases,
        begin.elapsed().as_secs_f64()
    );
    let beside = watch(&quiet, options.quiet, end - Duration::from_secs(1) - LEAD)?;
    print!("quiet, beside the loud:\n{beside}");
    let fenced = all_ended(&daemon.operator)?;
    let (worst, bound) = (beside.worst(), options.late_ms);
    beside.record(options.leases)?;
    if worst > bound as f64 || fenced > 0 {
        bail!("a lease of the quiet tenant ended {worst} ms late, {fenced} leases are fenced");
    }
    println!("none of the quiet tenant's was later than {bound} ms, and none is fenced");
    Ok(())
}

/// Measurements of the quiet tenant's leases.
struct Watched {
    /// Time of the answer to the last served read after the deadline, milliseconds; negative before the deadline. Those
    /// leases are missing whose reader was not served at all.
    served: Vec<f64>,
    /// How late each lease ended according to the node, milliseconds after the deadline.
    told: Vec<f64>,
    /// The times of a grant, and of a grant and its free, requested meanwhile.
    grants: Vec<Duration>,
    requests: Vec<Duration>,
}

impl Watched {
    /// The largest delay, milliseconds.
    fn worst(&self) -> f64 {
        let all = self.served.iter().chain(&self.told);
        all.copied().fold(f64::MIN, f64::max)
    }

    /// Records the figures of the quiet tenant beside so many ends of the loud one.
    fn record(&self, ends: u32) -> anyhow::Result<()> {
        let grants = sorted(self.grants.iter().map(|it| it.as_secs_f64() * 1e3));
        if grants.is_empty() {
            return Ok(());
        }
        let numbers = [
            ("ends/grant-p99", "grants, p99", percentile(&grants, 99)),
            ("ends/cut-worst", "cuts, the latest", self.worst()),
        ];
        for (name, what, number) in numbers {
            let of = Of {
                name,
                what: &format!("a quiet tenant's {what}, beside {ends} ends in a second"),
                unit: "ms",
                better: Better::Lower,
            };
            record(of.alone(number))?;
        }
        Ok(())
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = Spread::of(self.served.iter().copied());
        let told = Spread::of(self.told.iter().copied());
        let grants = Spread::of_times(&self.grants);
        let requests = Spread::of_times(&self.requests);
        let rows = [
            ("last read that was served, ms after the deadline", served),
            ("end as the node tells it, ms after the deadline", told),
            ("grant meanwhile, µs", grants),
            ("grant and free meanwhile, µs", requests),
        ];
        rows.iter().try_for_each(|(name, spread)| match spread {
            Some(spread) => writeln!(f, "  {name}: {spread}"),
            None => writeln!(f, "  {name}: none"),
        })
    }
}

/// Grants `count` leases and reads each until it is refused. The first ends at `first_end`, and each other one a
/// step later.
fn watch(node: &Node, count: u32, first_end: Instant) -> anyhow::Result<Watched> {
    let first_grant = first_end.checked_sub(Duration::from_secs(QUIET_SECS.into()));
    let first_grant = first_grant.filter(|at| *at > Instant::now());
    let first_grant =
        first_grant.context("no time is left for the quiet tenant; give more --secs")?;
    let mut leases = Vec::new();
    for number in 0..count {
        sleep_until(first_grant + STEP * number);
        leases.push(node.alloc(request(QUIET_SECS))?);
    }
    thread::scope(|scope| {
        let readers: Vec<_> = { leases.iter() }
            .map(|lease| scope.spawn(|| last_served(lease)))
            .collect();
        let (mut grants, mut requests) = (Vec::new(), Vec::new());
        sleep_until(first_end);
        while readers.iter().any(|reader| !reader.is_finished()) {
            let start = Instant::now();
            let lease = node.alloc(request(QUIET_SECS))?;
            grants.push(start.elapsed());
            node.call(Request::LeaseFree(lease.lease_id))?;
            requests.push(start.elapsed());
            thread::sleep(STEP);
        }
        let mut watched = Watched {
            served: Vec::new(),
            told: Vec::new(),
            grants,
            requests,
        };
        for (lease, reader) in leases.iter().zip(readers) {
            let served = reader.join();
            let served = served.map_err(|_panic| anyhow!("a reader panicked"))??;
            watched.served.extend(served);
            let reply = node.call(Request::LeaseQuery(lease.lease_id))?;
            let Reply::Lease(info) = reply else {
                return Err(node.unexpected("a lease", &reply).into());
            };
            ensure!(
                info.phase == LeasePhase::Expired,
                "{}: {}",
                info.lease_id,
                info.phase
            );
            watched.told.push(late_ms(&info)?);
        }
        let (all, served) = (leases.len(), watched.served.len());
        ensure!(
            served * 10 >= all * 9,
            "{} of {all} readers got no processor in the {} ms before their lease ended: this machine is too busy for \
             the measure; end what runs beside it",
            all - served,
            BEFORE.as_millis()
        );
        Ok(watched)
    })
}

/// Reads from shortly before the deadline on. Returns the time of the answer to the last served read, in milliseconds
/// after the deadline. `None`: none was served.
fn last_served(lease: &LeaseInfo) -> anyhow::Result<Option<f64>> {
    let coordinates = Coordinates {
        lease_id: lease.lease_id,
        dp_key: lease.binding.dp_key.clone().context("no key")?,
        endpoint: lease.binding.udp_endpoint.context("no endpoint")?.into(),
    };
    let deadline = UNIX_EPOCH + Duration::from_millis(lease.expires_at_unix_ms);
    let mut client = MemoryClient::connect(coordinates, ClientOptions::default(), None)?;
    // Without the privilege, the result includes the load of the machine.
    fabricbios_helper::set_niceness(NICENESS).ok();
    let wait = (deadline - BEFORE).duration_since(SystemTime::now());
    thread::sleep(wait.unwrap_or_default());
    let mut served = None;
    loop {
        match client.read(0, &mut [0; 64], &mut |_| ()) {
            Ok(()) => served = Some(SystemTime::now()),
            Err(ClientError::NoLease { .. }) => break,
            Err(error) => return Err(error.into()),
        }
        thread::sleep(PAUSE);
    }
    Ok(served.map(|served| match served.duration_since(deadline) {
        Ok(late) => late.as_secs_f64() * 1e3,
        Err(early) => -early.duration().as_secs_f64() * 1e3,
    }))
}

/// A lease that ends within the second before `end`.
async fn grant(node: Node, end: Instant) -> anyhow::Result<()> {
    let left = end.saturating_duration_since(Instant::now()).as_secs();
    let secs = u32::try_from(left)?;
    ensure!(
        secs > QUIET_SECS + 2,
        "the leases are not granted yet; give more --secs"
    );
    node.alloc_async(request(secs)).await?;
    Ok(())
}

fn request(secs: u32) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, secs)
}

/// How late a lease ended, as the node reports it, milliseconds.
fn late_ms(info: &LeaseInfo) -> anyhow::Result<f64> {
    let end = info.end.as_ref().context("an end that is not told")?;
    Ok(end.at_unix_ms as f64 - info.expires_at_unix_ms as f64)
}

fn sleep_until(at: Instant) {
    thread::sleep(at.saturating_duration_since(Instant::now()));
}

/// Waits until all leases have ended, and prints how late those of the loud tenant ended. Returns the number of
/// fenced leases.
fn all_ended(operator: &Node) -> anyhow::Result<usize> {
    while !list(operator, false)?.is_empty() {
        thread::sleep(STEP);
    }
    let ended = list(operator, true)?;
    let loud = ended
        .iter()
        .filter(|lease| lease.tenant.as_deref() == Some("loud"));
    let late: Vec<f64> = loud.map(late_ms).collect::<anyhow::Result<_>>()?;
    if let Some(spread) = Spread::of(late) {
        println!("loud:\n  end as the node tells it, ms after the deadline: {spread}");
    }
    let fenced = ended
        .iter()
        .filter(|lease| lease.phase == LeasePhase::Fenced);
    Ok(fenced.count())
}

fn list(operator: &Node, ended: bool) -> anyhow::Result<Vec<LeaseInfo>> {
    let mut leases = Vec::new();
    let mut after = Some(LeaseId(0));
    while let Some(id) = after {
        let reply = operator.call(Request::LeaseList { after: id, ended })?;
        let Reply::Leases(page) = reply else {
            return Err(operator.unexpected("leases", &reply).into());
        };
        leases.extend(page.leases);
        after = page.next;
    }
    Ok(leases)
}
