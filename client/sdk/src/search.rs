//! `discover:IFACE` in the place of an address: a scheduler of the identity's fabric that announces itself on a link.

use std::{fmt, net::SocketAddr, slice, time::Duration};

use fabricbios_discovery::{Found, Looking};
use fabricbios_fabric::Verifier;
use fabricbios_wire::{NodeId, ResourceType};
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};

use crate::{
    DISCOVER, Error, Identity,
    dial::{Connected, DialError, Dialler, no_answer},
};

/// How long a scheduler is looked for. Nothing is dialled later, so the whole takes [`DIAL`] more at most.
const LOOK: Duration = Duration::from_secs(6);
/// How long one address may take.
const DIAL: Duration = Duration::from_secs(3);
/// How often one address is dialled.
const OF_ADDRESS: usize = 2;

/// Where a scheduler is looked for.
pub(crate) struct Search {
    interface: String,
    ca: CertificateDer<'static>,
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Search({})", self.interface)
    }
}

impl Search {
    /// `None`: the node is named by its address.
    pub(crate) fn of(node: &str, identity: &Identity) -> Result<Option<Self>, Error> {
        match node.strip_prefix(DISCOVER) {
            None => Ok(None),
            Some("") => Err(Error::Usage(format!(
                "{node:?} names no interface; write discover:IFACE, such as discover:eth0 (`ip address` lists them)"
            ))),
            Some(interface) => Ok(Some(Self {
                interface: interface.to_owned(),
                ca: identity.ca().clone(),
            })),
        }
    }

    /// Looks for schedulers, and dials those found one after the other until one answers, each by its id.
    pub(crate) async fn dial(&self, dialler: &Dialler) -> Result<Connected, DialError> {
        let usage = |why: String| DialError::Local(Error::Usage(why));
        let verifier = Verifier::new(&self.ca);
        let verifier = verifier.map_err(|why| usage(format!("the CA of the identity: {why}")))?;
        let interface = slice::from_ref(&self.interface);
        let looking = Looking::ask(interface, verifier, ResourceType::Scheduler);
        let looking = looking.map_err(|why| match dialler.pin.answered() {
            None => usage(why.to_string()),
            // It was there before.
            Some(_) => DialError::NoAnswer(why.to_string()),
        })?;
        let (mut found, named) = (looking.changes(), dialler.pin.named());
        let end = Instant::now() + LOOK;
        let (mut tried, mut failures) = (Vec::new(), Vec::new());
        while Instant::now() < end {
            let next = next(&found.borrow_and_update(), named, &tried);
            let Some((id, address)) = next else {
                match timeout(end - Instant::now(), found.changed()).await {
                    Ok(Ok(())) => continue,
                    Ok(Err(_)) | Err(_) => break,
                }
            };
            tried.push((id, address));
            dialler.pin.expect_announced(id);
            match timeout(DIAL, dialler.dial_one(address)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(problem)) => failures.push(problem),
                Err(_late) => failures.push(DialError::NoAnswer(no_answer(address, DIAL))),
            }
        }
        Err(self.told(failures, named))
    }

    /// One that answered, and was not the right one or refused, says more than those that are silent.
    fn told(&self, failures: Vec<DialError>, named: Option<NodeId>) -> DialError {
        let mut silent = Vec::new();
        for failure in failures {
            match failure {
                DialError::NoAnswer(why) => silent.push(why),
                other => return other,
            }
        }
        if !silent.is_empty() {
            return DialError::NoAnswer(format!(
                "of the schedulers that announce themselves on {} none answers: {}",
                self.interface,
                silent.join("; ")
            ));
        }
        let which = named.map_or_else(String::new, |it| format!(" with the id {it}"));
        DialError::NoAnswer(format!(
            "no scheduler of your fabric{which} has answered on {} within {} s; `fabricbios-scheduler --announce IFACE` on the \
             same link and UDP port 5705 in firewalls are needed (`fabricctl discover` shows who is there); or write the \
             address of a node or scheduler",
            self.interface,
            LOOK.as_secs()
        ))
    }
}

/// The next address to dial, of the named scheduler if one is. Each scheduler has its turn, however many addresses it
/// announces.
fn next(
    found: &[Found],
    named: Option<NodeId>,
    tried: &[(NodeId, SocketAddr)],
) -> Option<(NodeId, SocketAddr)> {
    let suiting = found.iter().filter(|it| named.is_none_or(|id| id == it.id));
    let all = suiting.flat_map(|it| it.addresses.iter().map(|address| (it.id, *address)));
    let of_id = |id: NodeId| tried.iter().filter(|it| it.0 == id).count();
    let of_address = |at: SocketAddr| tried.iter().filter(|it| it.1 == at).count();
    all.filter(|it| of_address(it.1) < OF_ADDRESS)
        .min_by_key(|it| (of_id(it.0), of_address(it.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(id: NodeId, at: SocketAddr) -> Found {
        Found {
            id,
            addresses: vec![at],
            entries: Vec::new(),
            has_more: false,
        }
    }

    #[test]
    fn a_scheduler_that_announces_ever_new_addresses_hides_no_other() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let [liar, honest] = [1, 2].map(|it| NodeId([it; 32]));
        let mut tried = Vec::new();
        for round in 0..4 {
            let all = [found(liar, at(100 + round)), found(honest, at(5704))];
            tried.extend(next(&all, None, &tried));
        }
        let expected = [(liar, at(100)), (honest, at(5704)), (liar, at(102))];
        assert_eq!(tried, [&expected[..], &[(honest, at(5704))]].concat());
        let all = [found(honest, at(5704))];
        assert_eq!(next(&all, None, &tried), None);
        assert_eq!(next(&all, Some(liar), &[]), None);
    }
}
