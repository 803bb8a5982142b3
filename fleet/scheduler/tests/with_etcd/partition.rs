//! Three etcd servers and two schedulers, any two of which may be cut off from each other.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{Arc, OnceLock},
};

use fabricbios_client::Node;
use fabricbios_scheduler::Scheduler;
use fabricbios_wire::{NodeId, RefusalClass};

use crate::{
    cluster::Cluster,
    proxy::{Gate, Way, cut, gate, listen, way_to},
    world::{Reporting, World, away, placed, refused, until, until_async, until_refused},
};

const SERVERS: usize = 3;

struct Net {
    world: World,
    cluster: Cluster,
    /// By the server that is dialled, and the one that dials.
    servers: Arc<[[Gate; SERVERS]; SERVERS]>,
    /// By the scheduler, and the server.
    of_schedulers: Vec<Vec<Gate>>,
    schedulers: Vec<Scheduler>,
    clients: Vec<Node>,
}

impl Net {
    async fn new() -> Self {
        let world = World::new();
        let servers = Arc::new([(); SERVERS].map(|()| [(); SERVERS].map(|()| gate())));
        let pids = Arc::new(OnceLock::<Vec<u32>>::new());
        let cluster = Cluster::behind(&world, |dialled, address| {
            let (servers, pids) = (Arc::clone(&servers), Arc::clone(&pids));
            listen(address, move |port| {
                let dialling = who_has(port, pids.get()?)?;
                Some(servers[dialled][dialling].subscribe())
            })
        });
        pids.set(cluster.pids()).unwrap();
        let mut net = Self {
            world,
            cluster,
            servers,
            of_schedulers: Vec::new(),
            schedulers: Vec::new(),
            clients: Vec::new(),
        };
        for number in 0..2 {
            let urls = net.cluster.urls();
            let ways = urls.iter().map(|it| it.replace("https://", ""));
            let ways = ways.map(|it| way_to(it.parse().unwrap()));
            let (addresses, gates): (Vec<_>, Vec<_>) = ways.unzip();
            let mut urls: Vec<_> = addresses.iter().map(|it| format!("https://{it}")).collect();
            // Not the same server for both.
            urls.rotate_left(number);
            let scheduler = net.world.scheduler_with(urls);
            net.clients.push(net.world.client(&scheduler).await);
            net.schedulers.push(scheduler);
            net.of_schedulers.push(gates);
        }
        net
    }

    async fn between_servers(&self, one: usize, other: usize, way: Way) {
        go(&self.servers[one][other], way).await;
        go(&self.servers[other][one], way).await;
    }

    async fn of_scheduler(&self, scheduler: usize, server: usize, way: Way) {
        go(&self.of_schedulers[scheduler][server], way).await;
    }

    /// Waits until both schedulers know these members.
    async fn until_both_know(&self, expected: &BTreeSet<NodeId>) {
        for client in &self.clients {
            let are_known = async || {
                let members = client.members_async().await.unwrap();
                let reporting = members.reporting.iter().map(|it| it.id);
                let known: BTreeSet<_> = reporting
                    .chain(members.away.iter().map(|it| it.id))
                    .collect();
                (known == *expected).then_some(())
            };
            until_async("both know the same members", are_known).await;
        }
    }

    async fn stop(self) {
        for scheduler in self.schedulers {
            scheduler.stop().await;
        }
    }
}

/// Cut: also what is under way.
async fn go(gate: &Gate, way: Way) {
    match way {
        Way::Cut => cut(gate).await,
        way => drop(gate.send_replace(way)),
    }
}

/// Which of the processes has the TCP connection from this port of 127.0.0.1: proc_net(5), proc_pid_fd(5).
fn who_has(port: u16, pids: &[u32]) -> Option<usize> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let end = format!("0100007F:{port:04X}");
    let mut lines = table.lines().map(|it| it.split_whitespace());
    let inode = lines.find_map(|mut line| (line.nth(1)? == end).then(|| line.nth(7))?)?;
    let socket = format!("socket:[{inode}]");
    pids.iter().position(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|it| fs::read_link(it.path()).is_ok_and(|to| to == Path::new(&socket)))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn while_any_two_are_cut_off_from_each_other_members_are_written_and_told() {
    let net = Net::new().await;
    let cut_and_open = async |pair: usize, way| match pair {
        pair @ 0..6 => net.of_scheduler(pair / SERVERS, pair % SERVERS, way).await,
        pair => {
            net.between_servers(pair % SERVERS, (pair + 1) % SERVERS, way)
                .await;
        }
    };
    let mut connections = Vec::new();
    let mut members = BTreeSet::new();
    for pair in 0..9 {
        cut_and_open(pair, Way::Cut).await;
        let node = net.world.node(&format!("rack=r{pair}"));
        connections.push(node.report_to(&net.schedulers[0]).await);
        members.insert(node.id());
        // The other scheduler knows it from etcd alone.
        net.until_both_know(&members).await;
        cut_and_open(pair, Way::Open).await;
    }
    assert_eq!(away(&net.clients[1]).await.len(), 9);
    net.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_on_the_smaller_side_goes_on_from_memory_and_says_nothing_for_good() {
    let net = Net::new().await;
    let nodes = ["rack=r1", "rack=r2", "rack=r3", "rack=r4"].map(|it| net.world.node(it));
    let [one, of_greater_side, of_smaller_side, later] = &nodes;
    let mut connections = Vec::new();
    for scheduler in &net.schedulers {
        let connection = one.report_to(scheduler).await;
        one.say_all(&connection).await;
        connections.push(connection);
    }
    for client in &net.clients {
        until_refused(client, RefusalClass::Permanent).await;
    }
    let [smaller, greater] = &net.clients[..] else {
        panic!("two schedulers");
    };

    // The first server has no leader, and the first scheduler reaches no other server.
    for server in [1, 2] {
        net.of_scheduler(0, server, Way::Cut).await;
        net.between_servers(0, server, Way::Cut).await;
    }
    until_refused(smaller, RefusalClass::Transient).await;
    assert_eq!(placed(smaller).await.unwrap(), [one.id()]);
    let connection = of_greater_side.report_to(&net.schedulers[1]).await;
    of_greater_side.say_all(&connection).await;
    connections.push(connection);
    let (url, key) = (&net.cluster.urls()[2], net.world.key(of_greater_side));
    until("a record", || net.world.get_at(url, &key)).await;
    until_refused(greater, RefusalClass::Permanent).await;
    assert_eq!(away(smaller).await, [].into());

    // It goes on to a server of the greater side.
    net.of_scheduler(0, 2, Way::Open).await;
    net.until_both_know(&[one.id(), of_greater_side.id()].into())
        .await;
    let connection = of_greater_side.report_to(&net.schedulers[0]).await;
    of_greater_side.say_all(&connection).await;
    connections.push(connection);
    until_refused(smaller, RefusalClass::Permanent).await;

    // It reaches no server at all.
    for server in 0..SERVERS {
        net.of_scheduler(0, server, Way::Cut).await;
    }
    until_refused(smaller, RefusalClass::Transient).await;
    let connection = of_smaller_side.report_to(&net.schedulers[0]).await;
    of_smaller_side.say_all(&connection).await;
    connections.push(connection);
    connections.push(later.report_to(&net.schedulers[1]).await);
    let key = net.world.key(later);
    until("a record", || net.world.get_at(url, &key)).await;
    for _ in 0..50 {
        assert_eq!(placed(smaller).await.unwrap().len(), 3);
        assert_eq!(refused(smaller).await, RefusalClass::Transient);
    }
    assert_eq!(away(smaller).await, [].into());

    for server in 0..SERVERS {
        net.of_scheduler(0, server, Way::Open).await;
        net.between_servers(0, server, Way::Open).await;
    }
    let all = nodes.iter().map(Reporting::id);
    net.until_both_know(&all.collect()).await;
    net.stop().await;
}
