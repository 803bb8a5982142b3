//! Grants and cuts of network functions: macvlan leases against a shell script that makes and deletes the same devices,
//! and virtual functions against macvlan leases. Needs root, and a network interface that no other program uses;
//! testbed/guest/bench_net.py provides one, and also measures rates.

use anyhow::Context;
use clap::Args;
use fabricbios_client::Node;
use fabricbios_wire::{NetTerms, VlanId};

use crate::{
    cycles::{Cycle, compare, cut, grant, script},
    daemon::Daemon,
    place::runtime,
};

/// Bits per second of each lease.
const RATE_BPS: u64 = 100_000_000;

/// The VLAN of the virtual functions: most cards do not support an untagged lease.
const VLAN: u16 = 7;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Make macvlans on this interface
    #[arg(long, value_name = "IFNAME")]
    macvlan_parent: String,
    /// Lease virtual functions of this card too
    #[arg(long, value_name = "IFNAME")]
    sriov_pf: Option<String>,
    /// Pairs of rounds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let parent = &options.macvlan_parent;
    let place = tempfile::tempdir()?;
    let arguments = format!("--mem-bytes=1MiB --macvlan-parent={parent}=1000 --net-vlan=bench=0");
    let daemon = Daemon::start(place.path(), &arguments)?;
    let macvlans = daemon.tenant("bench")?;
    println!("\nmacvlan");
    compare(
        "net/macvlan",
        options.rounds,
        ["macvlan lease", "shell script"],
        || leased(&macvlans, None),
        || by_hand(parent),
    )?;
    let Some(card) = &options.sriov_pf else {
        return Ok(());
    };
    let place = tempfile::tempdir()?;
    let arguments = format!("--mem-bytes=1MiB --sriov-pf={card} --net-vlan=bench={VLAN}");
    let daemon = Daemon::start(place.path(), &arguments)?;
    let functions = daemon.tenant("bench")?;
    println!("\nvirtual function");
    compare(
        "net/function",
        options.rounds,
        ["virtual function", "macvlan"],
        || leased(&functions, VlanId::new(VLAN)),
        || leased(&macvlans, None),
    )
}

fn leased(tenant: &Node, vlan: Option<VlanId>) -> anyhow::Result<Cycle> {
    let terms = NetTerms {
        vlan,
        ..NetTerms::default()
    };
    let (lease, granted) = grant(tenant, RATE_BPS, terms)?;
    lease.binding.net().context("the lease has no interface")?;
    Ok((granted, cut(tenant, &lease)?))
}

/// Makes the devices of sriov/src/macvlan, with one process for each tool and step.
fn by_hand(parent: &str) -> anyhow::Result<Cycle> {
    let shaped = |device: &str| {
        format!(
            "qdisc add dev {device} root handle 1: htb default 1\n\
             class add dev {device} parent 1: classid 1:1 htb rate {RATE_BPS}bit burst 128k quantum 131072\n\
             qdisc add dev {device} parent 1:1 fq_codel\n"
        )
    };
    let (macvlan, node_end) = (shaped("handm"), shaped("handn"));
    let make = format!(
        "ip -batch - <<END
link add handm link {parent} address 02:00:00:00:00:99 type macvlan mode private
link set handm addrgenmode none allmulticast on alias by-hand
link add handn type veth peer name handt address 02:00:00:00:00:99
link set handn addrgenmode none alias by-hand
END
tc -batch - <<END
qdisc add dev handn clsact
filter add dev handn ingress pref 1 protocol 802.1q matchall action drop
filter add dev handn ingress pref 2 protocol 802.1ad matchall action drop
filter add dev handn ingress pref 3 protocol all flower src_mac 02:00:00:00:00:99 action mirred egress redirect dev handm
filter add dev handn ingress pref 4 protocol all matchall action drop
qdisc add dev handm clsact
filter add dev handm ingress pref 1 protocol 802.1q matchall action drop
filter add dev handm ingress pref 2 protocol 802.1ad matchall action drop
filter add dev handm ingress pref 3 protocol all matchall action mirred egress redirect dev handn
{macvlan}{node_end}END
ip -batch - <<END
link set handm up
link set handn up
link set handt up
END"
    );
    let end = "ip -batch - <<END\nlink del handm\nlink del handn\nEND";
    Ok((script(&make)?, script(end)?))
}
