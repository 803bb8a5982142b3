//! Three etcd servers, of which some are stopped or killed.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::world::{World, placed, until};

/// Three servers with the certificates of the world's own etcd. Dropping it ends them.
pub(crate) struct Cluster {
    servers: Vec<(String, Child)>,
    _data: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn start(world: &World) -> Self {
        Self::behind(world, |_, server| server)
    }

    /// Servers that reach each other by other addresses: `way` makes one of a server's number and its own address.
    pub(crate) fn behind(world: &World, way: impl Fn(usize, SocketAddr) -> SocketAddr) -> Self {
        let data = tempfile::tempdir().unwrap();
        let listeners: Vec<TcpListener> = { 0..6 }
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let addresses: Vec<SocketAddr> = { listeners.iter() }
            .map(|it| it.local_addr().unwrap())
            .collect();
        drop(listeners);
        let url = |at: &SocketAddr| format!("https://{at}");
        let urls: Vec<String> = addresses.iter().map(url).collect();
        let (clients, peers) = urls.split_at(3);
        let ways: Vec<String> = { addresses[3..].iter().enumerate() }
            .map(|(at, address)| url(&way(at, *address)))
            .collect();
        let members: Vec<String> = { ways.iter().enumerate() }
            .map(|(at, url)| format!("m{at}={url}"))
            .collect();
        let (identity, ca) = (world.etcd.identity(), world.etcd.ca());
        let start = |at: usize| {
            let mut etcd = Command::new("setpriv");
            etcd.args(["--pdeathsig", "KILL", "etcd"])
                .arg(format!("--name=m{at}"))
                .arg("--data-dir")
                .arg(data.path().join(at.to_string()))
                .arg(format!("--initial-cluster={}", members.join(",")))
                .arg(format!("--listen-client-urls={}", clients[at]))
                .arg(format!("--advertise-client-urls={}", clients[at]))
                .arg(format!("--listen-peer-urls={}", peers[at]))
                .arg(format!("--initial-advertise-peer-urls={}", ways[at]));
            for of in ["", "peer-"] {
                for (flag, file) in [
                    ("cert-file", &identity),
                    ("key-file", &identity),
                    ("trusted-ca-file", &ca),
                ] {
                    etcd.arg(format!("--{of}{flag}")).arg(file);
                }
                etcd.arg(format!("--{of}client-cert-auth"));
            }
            let (stdin, quiet) = (Stdio::null(), || Stdio::null());
            etcd.env(
                "ETCD_UNSUPPORTED_ARCH",
                std::env::consts::ARCH.replace("aarch64", "arm64"),
            );
            etcd.stdin(stdin)
                .stdout(quiet())
                .stderr(quiet())
                .spawn()
                .unwrap()
        };
        Self {
            servers: (0..3).map(|at| (clients[at].clone(), start(at))).collect(),
            _data: data,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|(url, _)| url.clone()).collect()
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(|(_, it)| it.id()).collect()
    }

    fn signal(&self, at: usize, signal: Signal) {
        let pid = i32::try_from(self.servers[at].1.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, server) in &mut self.servers {
            // SIGKILL ends a stopped process too.
            server.kill().ok();
            server.wait().ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_servers_one_may_hang_and_without_two_the_fleet_goes_on_from_memory() {
    let world = World::new();
    let cluster = Cluster::start(&world);
    let urls = cluster.urls();
    let nodes = ["rack=r7", "rack=r8", "rack=r9"].map(|it| world.node(it));
    let scheduler = world.scheduler_with(urls.clone());
    let client = world.client(&scheduler).await;
    let _first = nodes[0].report_to(&scheduler).await;
    let key = world.key(&nodes[0]);
    until("the first record", || world.get_at(&urls[1], &key)).await;

    // The first server, which the scheduler uses, hangs; if it leads, the others choose another leader.
    cluster.signal(0, Signal::SIGSTOP);
    let _second = nodes[1].report_to(&scheduler).await;
    let key = world.key(&nodes[1]);
    until("the second record", || world.get_at(&urls[2], &key)).await;

    // One server of three cannot write, and has no leader.
    cluster.signal(1, Signal::SIGKILL);
    let _third = nodes[2].report_to(&scheduler).await;
    assert_eq!(placed(&client).await.unwrap().len(), 3);
    cluster.signal(0, Signal::SIGCONT);
    let key = world.key(&nodes[2]);
    until("the third record", || world.get_at(&urls[2], &key)).await;
    assert_eq!(placed(&client).await.unwrap().len(), 3);
    scheduler.stop().await;
}
