#![allow(clippy::all, missing_docs, unreachable_pub)]
use fabricbios_contract::*;
use fabricbios_helper::Supervisor;
use fabricbios_lease::*;
use fabricbios_sriov::{netlink::Netlink, vf::*};
use fabricbios_wire::*;
use std::{sync::Arc, time::Instant};
#[derive(Debug)]
struct W;
impl Guard for W {
    fn watches(&self) -> bool {
        true
    }
    fn extend(&self, _: BindingId, _: BootTime) {}
    fn over(&self, _: BindingId) {}
}
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let places = Places {
        sysfs: "/sys".into(),
        dev: "/dev".into(),
        records: "/run/fbtry/net".into(),
        cdi: "/run/cdi".into(),
    };
    let t = Instant::now();
    let lease = LeaseId(a.get(1).map_or(0, |x| x.parse().unwrap()));
    if a[0] == "end" {
        println!("{:?} {:?}", VfEnd::new(&places).end(lease), t.elapsed());
        return;
    }
    let card = Arc::new(
        Card::open(CardConfig {
            interface: "pf0".into(),
            count: None,
            places,
            supervisor: Supervisor::of_threads(calls()),
            links: Arc::new(Netlink::open().unwrap()),
        })
        .unwrap(),
    );
    println!(
        "card {:?} functions {} of {} rate {} degraded {:?}",
        t.elapsed(),
        card.count(),
        card.total(),
        card.rate_bps(),
        card.degraded()
    );
    let t = Instant::now();
    let path = Arc::new(VfPath::new(card.clone(), Arc::new(W)));
    let p = Provider::new()
        .with_store(ResourceId(5), Arc::new(VfStore::new(card)))
        .with_path("SR-IOV", &[Transport::Auto], path.clone());
    let id = BindingId {
        lease_id: lease,
        generation: Generation(1),
        resource_id: ResourceId(5),
    };
    let part = |name: &str, amount| Quantity {
        name: name.into(),
        amount,
    };
    let placement =
        Placement::Vector([part("rate", 100_000_000), part("virtual functions", 1)].into());
    match &*a[0] {
        "bind" => {
            let h = match &*a[2] {
                "vfio" => HandOver::Vfio,
                "netns" => HandOver::Netns,
                _ => HandOver::Interface,
            };
            let terms = NetTerms {
                mac: a.get(3).filter(|x| *x != "-").map(|x| x.parse().unwrap()),
                vlan: a.get(4).and_then(|x| x.parse().ok()).and_then(VlanId::new),
                hand_over: Some(h),
            };
            let order = BindOrder {
                terms: terms.into(),
                tenant: "blue".into(),
                ..BindOrder::new(id, placement, Transport::Auto)
            };
            match p.bind(&order) {
                Ok(b) => {
                    println!("{:?}", b.kind);
                }
                Err(e) => {
                    println!("{e:?}");
                    std::process::exit(1)
                }
            }
            println!("bind took {:?}", t.elapsed());
            if h == HandOver::Netns && a.len() > 5 {
                let given = Given::NetworkNamespace(std::fs::File::open(&a[5]).unwrap().into());
                println!(
                    "{:?}",
                    path.enter(
                        lease,
                        &Caller {
                            uid: 0,
                            pid: 1,
                            tenants: vec!["blue".into()],
                            is_root: false
                        },
                        given
                    )
                );
            }
        }
        "cut" | "end-all" => {
            let r = path.revoke(id, Linger::None).unwrap();
            println!("revoke {:?}", t.elapsed());
            println!("{} {:?}", path.verify(id, Some(&r)).unwrap(), t.elapsed());
            if a[0] == "end-all" {
                println!("{:?} {:?}", p.release(id, placement, &|| ()), t.elapsed());
            }
        }
        "release" => println!("{:?} {:?}", p.release(id, placement, &|| ()), t.elapsed()),
        _ => {}
    }
}
