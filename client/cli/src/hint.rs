//! Hints about the next step after a refusal.
//!
//! The node explains a refusal, but does not know the commands of this program. A hint is added only if the message of the
//! node has no advice.

use fabricbios_wire::LeaseError;

use crate::args::{Command, Fence, Lease};

/// The subject of a command; the hint for a refusal depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    NewLease,
    /// Anything that a scheduler was asked for.
    Scheduler,
    Lease,
    Fence,
    Other,
}

impl From<&Command> for Topic {
    fn from(command: &Command) -> Self {
        match command {
            Command::Lease(Lease::Alloc(_)) | Command::Mooncake(_) => Self::NewLease,
            Command::Gpu(what) if what.is_leasing() => Self::NewLease,
            Command::Perftest(_) => Self::NewLease,
            Command::Lease(_) | Command::Mem(_) | Command::Block(_) | Command::Gpu(_) => {
                Self::Lease
            }
            Command::Fence(Fence::List | Fence::Clear { .. }) => Self::Fence,
            Command::Ping
            | Command::Health
            | Command::Inventory
            | Command::Identity(_)
            | Command::Node(_)
            | Command::Fabric(_)
            | Command::Discover(_)
            | Command::DebugBundle(_)
            | Command::Page(_)
            | Command::Run(_)
            | Command::RunWatch(_) => Self::Other,
        }
    }
}

/// Words that show that a message has advice.
const ADVICE: [&str; 15] = [
    "a renewal opens",
    "again",
    "ask for ",
    "at least",
    "at most",
    "elsewhere",
    "first",
    "give the ",
    "has no kernel",
    "inventory",
    "later",
    "LEASE_BIND",
    "LEASE_QUERY",
    "renew after",
    "rotate after",
];

/// The hint to add to `message`, if any.
pub(crate) fn hint(topic: Topic, error: LeaseError, message: &str) -> Option<&'static str> {
    // The refusal of a bare-metal node (004 §2), which names a tag.
    if topic == Topic::NewLease && message.contains("TLV_LEASE_CPU_ISOLATION") {
        return Some("ask for as many cores as --execution-width, which is 1 unless it is given");
    }
    let hint = by_topic(topic, error)?;
    let said = message.contains(hint) || ADVICE.iter().any(|word| message.contains(word));
    (!said).then_some(hint)
}

fn by_topic(topic: Topic, error: LeaseError) -> Option<&'static str> {
    use LeaseError as E;
    let hint = match error {
        E::InvalidIntent | E::InvalidArgs | E::CapacityExceeded if topic == Topic::Scheduler => {
            "see `fabricctl node list`"
        }
        // The message of the node has the required identity.
        E::NotPermitted => return None,
        E::RenewTooEarly => "`fabricctl lease keep` waits for that",
        E::InvalidIntent | E::InvalidArgs if topic == Topic::NewLease => {
            "see `fabricctl inventory`"
        }
        E::InvalidIntent | E::InvalidArgs => return None,
        E::CapacityExceeded => "see `fabricctl inventory`",
        E::ResourceBusy => "try again later",
        E::NotFound => return where_to_look(topic),
        E::Expired | E::Revoked => "ask for a new lease",
        E::Fenced if topic == Topic::Fence => "see the node's log",
        E::Fenced => "`fabricctl fence list`, with an operator's identity, says why",
        E::Unsupported => "check that node and fabricctl are of the same version",
        E::Malformed | E::Internal => "see the node's log",
        E::Unavailable => "try again, or another node",
    };
    Some(hint)
}

fn where_to_look(topic: Topic) -> Option<&'static str> {
    match topic {
        Topic::NewLease => Some("see `fabricctl inventory`"),
        Topic::Scheduler => Some("see `fabricctl node list`"),
        Topic::Lease => Some("see `fabricctl lease list --all`"),
        Topic::Fence => Some("see `fabricctl fence list`"),
        Topic::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_is_looked_for_where_it_would_be() {
        let hints = [
            (Topic::NewLease, "inventory"),
            (Topic::Lease, "lease list --all"),
            (Topic::Fence, "fence list"),
        ];
        for (topic, place) in hints {
            let hint = hint(topic, LeaseError::NotFound, "no such thing").unwrap();
            assert!(hint.contains(place), "{hint}");
        }
    }

    #[test]
    fn a_node_that_says_what_to_do_is_not_talked_over() {
        use LeaseError as E;
        let said = [
            (E::NotPermitted, "that takes an operator identity"),
            (E::InvalidArgs, "this node allows 3600 at most"),
            (E::InvalidArgs, "this node has no Gpu; see its inventory"),
            (E::ResourceBusy, "lease 1 is being bound; ask again"),
            (E::Unavailable, "shutting down; lease elsewhere"),
            (E::Expired, "lease 1 is in grace: renew it first"),
            (E::Internal, "the lease goes on: LEASE_BIND gives it a key"),
        ];
        for (error, message) in said {
            assert_eq!(hint(Topic::NewLease, error, message), None, "{message}");
        }
    }
}
