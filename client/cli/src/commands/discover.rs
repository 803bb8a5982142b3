//! `discover`: the schedulers that announce themselves on the links of this machine.

use std::{fs, path::Path, time::Duration};

use fabricbios_client::Identity;
use fabricbios_discovery::{Found, Looking, multicast_interfaces};
use fabricbios_fabric::Verifier;
use fabricbios_wire::ResourceType;
use tokio::{runtime, time::sleep};

use super::not_found;
use crate::{
    args::Discover,
    failure::Failure,
    json::{Object, field},
    output::{Output, headed_table},
};

pub(super) fn run(what: &Discover, identity: &Path, output: Output) -> Result<(), Failure> {
    // Its errors say what is wrong with the file.
    Identity::load(identity)?;
    let interfaces = match &what.interface[..] {
        [] => multicast_interfaces().map_err(|why| Failure::local("list the interfaces", &why))?,
        named => named.to_vec(),
    };
    let found = look(&interfaces, identity, Duration::from_secs(what.wait.into()))?;
    if found.is_empty() {
        return Err(not_found(format!(
            "no scheduler of your fabric has answered on {} within {} s; `fabricbios-scheduler --announce IFACE` on the \
             same link and UDP port 5705 in firewalls are needed; or name it with --node",
            list(&interfaces),
            what.wait
        )));
    }
    let all: Vec<Object<'_>> = found.iter().map(json).collect();
    output.print(&Object::from([field("schedulers", all)]), || {
        headed_table(["SCHEDULER", "ADDRESS"], found.iter().map(columns))
    })
}

fn look(interfaces: &[String], identity: &Path, wait: Duration) -> Result<Vec<Found>, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("identity {}: {why}", identity.display()))
    };
    let text = fs::read(identity).map(zeroize::Zeroizing::new);
    let verifier = Verifier::of_identity(&text.map_err(|why| bad(&why))?);
    let verifier = verifier.map_err(|why| bad(&why))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Failure::local("start the runtime", &why))?;
    runtime.block_on(async {
        let looking = Looking::ask(interfaces, verifier, ResourceType::Scheduler);
        let looking = looking.map_err(|why| Failure::usage(why.to_string()))?;
        sleep(wait).await;
        Ok(looking.now())
    })
}

fn list(interfaces: &[String]) -> String {
    match interfaces {
        [] => "any interface: none is up with an address and multicast".to_owned(),
        some => some.join(", "),
    }
}

/// The names are a contract.
fn json(found: &Found) -> Object<'_> {
    let addresses = found.addresses.iter().map(ToString::to_string);
    Object::from([
        field("scheduler_id", found.id.to_string()),
        field("addresses", addresses.collect::<Vec<_>>()),
        // Absent if it serves no HTTP.
        field("http_port", found.http_port),
    ])
}

fn columns(found: &Found) -> Vec<String> {
    let addresses = found.addresses.iter().map(ToString::to_string);
    vec![
        found.id.to_string(),
        addresses.collect::<Vec<_>>().join(" "),
    ]
}
