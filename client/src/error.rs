//! What can go wrong between a caller and its lease, and whose turn it is then.

use std::{path::PathBuf, time::Duration};

use fabricbios_wire::{LeaseError, LeaseId, Refusal};

/// Why a call did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node said no: to the request, or to a connection more than it has room for.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// No answer. `may_have_happened`: the request was sent, and only the answer is missing.
    #[error("cannot reach node {node}: {why}{}", after_loss(*.may_have_happened))]
    Unreachable {
        /// As it was given.
        node: String,
        /// What was seen.
        why: String,
        /// Whether the node may have acted on it.
        may_have_happened: bool,
    },
    /// The identity file cannot be used.
    #[error("identity {path}: {why}")]
    Identity {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// The node does not accept this identity.
    #[error("node {node} refused this identity: {why}")]
    IdentityRefused {
        /// As it was given.
        node: String,
        /// What the node said.
        why: String,
    },
    /// Whoever answers at that address is no node of the identity's fabric.
    #[error("{node} is not a node of this identity's fabric: {why}")]
    UntrustedNode {
        /// As it was given.
        node: String,
        /// What is wrong with its certificate.
        why: String,
    },
    /// The node answered with something that this client does not understand.
    #[error("node {node} answered with something unexpected: {why}; do the versions match?")]
    Protocol {
        /// As it was given.
        node: String,
        /// What was unexpected.
        why: String,
    },
    /// The node granted less than was asked for; the lease was given back.
    #[error(
        "lease {lease_id} would not have enforced: {}; {}",
        .missing.join(", "),
        after_failing_closed(*.freed)
    )]
    FailedClosed {
        /// Which lease.
        lease_id: LeaseId,
        /// What was asked for and is not enforced.
        missing: Vec<String>,
        /// Whether giving it back worked; if not, it runs out by itself.
        freed: bool,
    },
    /// A lease that needs no asking about: it is over.
    #[error("lease {lease_id} is over: {why}")]
    Ended {
        /// Which lease.
        lease_id: LeaseId,
        /// How it ended.
        why: String,
    },
    /// A flush found that the node's machine was started anew: what was confirmed and not flushed before may be
    /// lost. Says what to do; it is said once.
    #[error("{0}")]
    WritesLost(String),
    /// The call itself makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This machine cannot do what is needed to ask at all.
    #[error("this machine cannot {what}: {why}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        why: String,
    },
}

fn after_loss(may_have_happened: bool) -> &'static str {
    if may_have_happened {
        "; the node may have carried the request out: query before repeating"
    } else {
        ""
    }
}

fn after_failing_closed(freed: bool) -> &'static str {
    if freed {
        "it was given back; ask another node, or for less"
    } else {
        "giving it back failed too, it runs out by itself"
    }
}

impl Error {
    /// The node's refusal, if that is what it is.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Whether the request was sent and only its answer is missing.
    pub(crate) fn may_have_happened(&self) -> bool {
        matches!(self, Self::Unreachable { may_have_happened, .. } if *may_have_happened)
    }

    /// The last error of several tries.
    pub(crate) fn after(mut self, tries: u32, waited: Duration) -> Self {
        if let (
            2..,
            Self::Refused(Refusal { message: text, .. }) | Self::Unreachable { why: text, .. },
        ) = (tries, &mut self)
        {
            text.push_str(&format!(
                " (asked {tries} times in {:.1} s)",
                waited.as_secs_f64()
            ));
        }
        self
    }

    /// Whether the node has said of a lease that nothing can be done with it any more.
    pub fn is_over(&self) -> bool {
        use LeaseError::{Expired, Fenced, NotFound, Revoked};
        let code = self.refusal().map(|refusal| refusal.error);
        matches!(code, Some(Expired | Fenced | NotFound | Revoked))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
