//! What a large fleet costs: requests at etcd while nothing happens, and a scheduler that starts anew.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context;
use fabricbios_wire::{LeaseAllocRequest, Reply, Request, ResourceType};
use tokio::time::sleep;

use crate::{PATIENCE, fleet::Fleet, views};

/// For how long nothing happens.
const IDLE: Duration = Duration::from_secs(20);

pub(crate) async fn print(fleet: &mut Fleet) -> anyhow::Result<()> {
    while fleet.members_in_etcd()? < fleet.nodes() {
        sleep(Duration::from_secs(1)).await;
    }
    let before = requests(fleet)?;
    sleep(IDLE).await;
    let requests = requests(fleet)? - before;
    println!(
        "while nothing happens etcd gets {:.2} requests a second",
        requests / IDLE.as_secs_f64()
    );
    fleet.kill_scheduler(0);
    fleet.start_scheduler(0)?;
    let begin = Instant::now();
    let client = fleet.operator(0).await?;
    let wanted = LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Mem, 4096, 60)
    };
    while !matches!(
        client.call_async(Request::LeaseAlloc(wanted.clone())).await,
        Ok(Reply::Redirect(_))
    ) {
        sleep(Duration::from_millis(10)).await;
    }
    let first = begin.elapsed();
    while fleet.whole_nodes(0) < Some(fleet.nodes()) {
        sleep(Duration::from_millis(100)).await;
    }
    let whole = begin.elapsed();
    let agreed = views::agree(fleet, 0, PATIENCE).await;
    agreed.map_err(anyhow::Error::msg)?;
    println!(
        "a scheduler that was killed and started: first Redirect after {first:.1?}, all nodes and leases after {whole:.1?}, told and compared after {:.1?}",
        begin.elapsed()
    );
    Ok(())
}

impl Fleet {
    /// The nodes that have told this scheduler all their leases. `None`: it does not answer, or [`Options::figures`] is not set.
    ///
    /// [`Options::figures`]: crate::Options::figures
    #[must_use]
    pub fn whole_nodes(&self, scheduler: usize) -> Option<usize> {
        let page = get(self.schedulers[scheduler].http?, "/healthz").ok()?;
        let (_, after) = page.split_once("\"nodes_whole\":")?;
        after.split(',').next()?.parse().ok()
    }
}

/// Requests that etcd has answered, by its own count.
fn requests(fleet: &Fleet) -> anyhow::Result<f64> {
    let told = get(
        fleet.metrics().context("etcd tells no counters")?,
        "/metrics",
    )?;
    let lines = told
        .lines()
        .filter(|it| it.starts_with("grpc_server_handled_total"));
    let counts = lines.filter_map(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
    let sum: Option<f64> = counts.reduce(|one, other| one + other);
    sum.context("etcd's metrics do not count its requests")
}

fn get(from: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(from)?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut told = String::new();
    stream.read_to_string(&mut told)?;
    Ok(told)
}
