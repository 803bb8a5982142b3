//! The errors of the SDK.

use std::{path::PathBuf, time::Duration};

use fabricbios_wire::{EndCause, LeaseError, LeaseId, Refusal, RefusalClass};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The node refused the request, or one more connection.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The node did not answer.
    #[error("cannot reach node {node}: {why}{}", after_loss(*.may_have_happened))]
    Unreachable {
        /// The node as the caller named it.
        node: String,
        /// The symptom.
        why: String,
        /// Whether the node may have done the request: it was sent, and only the answer is missing.
        may_have_happened: bool,
    },
    /// The identity file cannot be used.
    #[error("identity {path}: {why}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        why: String,
    },
    /// The node does not accept this identity.
    #[error("node {node} refused this identity: {why}")]
    IdentityRefused {
        /// The node as the caller named it.
        node: String,
        /// The reason of the node.
        why: String,
    },
    /// The server at this address is not a node of the fabric of the identity, or is another node than the one that was
    /// asked for or has answered before. It was sent no request.
    #[error("{node} is not trusted: {why}")]
    UntrustedNode {
        /// The node as the caller named it.
        node: String,
        /// The problem of its certificate, or the ids of both nodes.
        why: String,
    },
    /// This client does not understand the answer of the node.
    #[error("node {node} answered with something unexpected: {why}; do the versions match?")]
    Protocol {
        /// The node as the caller named it.
        node: String,
        /// The unexpected part.
        why: String,
    },
    /// The node granted less than was requested; the lease was freed.
    #[error(
        "lease {lease_id} would not have enforced: {}; {}",
        .missing.join(", "),
        after_failing_closed(*.freed)
    )]
    FailedClosed {
        /// The lease.
        lease_id: LeaseId,
        /// The requested properties that are not enforced.
        missing: Vec<String>,
        /// Whether freeing it worked; if not, it expires.
        freed: bool,
    },
    /// The lease is over, for good.
    #[error("lease {lease_id} is over: {why}")]
    Ended {
        /// The lease.
        lease_id: LeaseId,
        /// The cause, if known.
        cause: Option<EndCause>,
        /// How the lease ended, for people.
        why: String,
    },
    /// The term of the lease is over, and its contents are kept until its grace time is over too.
    #[error("lease {lease_id} has expired and is in its grace time: a renewal opens it again")]
    InGrace {
        /// The lease.
        lease_id: LeaseId,
    },
    /// The session of a GPU is over, with its memory and modules. Unless its lease is over too, another one can be opened.
    #[error("session {session} of lease {lease_id} is over: {why}")]
    SessionEnded {
        /// The lease.
        lease_id: LeaseId,
        /// The session.
        session: u64,
        /// How the session ended.
        why: String,
    },
    /// A flush found that the machine of the node has restarted: confirmed writes since the last flush may be lost.
    /// The text says what to do; it comes once.
    #[error("{0}")]
    WritesLost(String),
    /// The arguments of the call are wrong.
    #[error("{0}")]
    Usage(String),
    /// A local operation failed.
    #[error("this machine cannot {what}: {why}")]
    Local {
        /// The operation.
        what: &'static str,
        /// The error of the system.
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
        "the lease was given back; ask another node, or for less"
    } else {
        "giving the lease back failed too: the lease ends with its term"
    }
}

impl Error {
    /// The refusal of the node, if this error is one.
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

    /// Adds the number of tries and their time to the last error.
    pub(crate) fn after(self, tries: u32, waited: Duration) -> Self {
        match tries {
            2.. => self.with(&format!(
                " (asked {tries} times in {:.1} s)",
                waited.as_secs_f64()
            )),
            _ => self,
        }
    }

    /// Adds to the text of a refusal, of a node that was not reached, or of one that answered with something else.
    pub(crate) fn with(mut self, more: &str) -> Self {
        if let Self::Refused(Refusal { message: text, .. })
        | Self::Unreachable { why: text, .. }
        | Self::UntrustedNode { why: text, .. }
        | Self::Protocol { why: text, .. } = &mut self
        {
            text.push_str(more);
        }
        self
    }

    /// Whether the lease is over for good: [`Error::Ended`], or a refusal of the node with this meaning. A lease in its
    /// grace time is not.
    pub fn is_over(&self) -> bool {
        use LeaseError::{Expired, Fenced, NotFound, Revoked};
        match self {
            Self::Ended { .. } => true,
            // A scheduler that knows no such lease may learn of it again.
            Self::Refused(refusal) if refusal.error == NotFound => {
                refusal.class != RefusalClass::Transient
            }
            Self::Refused(refusal) => matches!(refusal.error, Expired | Fenced | Revoked),
            _ => false,
        }
    }

    /// Why the lease ended, if this error has the cause. A refusal has none: after a refusal, [`crate::Lease::query`]
    /// returns the cause.
    pub fn end_cause(&self) -> Option<EndCause> {
        match self {
            Self::Ended { cause, .. } => *cause,
            _ => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
