//! The messages of the local socket.

use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass};
use serde::{Deserialize, Serialize};

/// Largest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 8_192;

/// A caller's request, such as `{"ask":"run","lease_id":"00000000000000000000000000000001"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Does a node answer?
    Ping {},
    /// How long does access to the lease last? Only for leases that take processes. No descriptor.
    Term {
        /// The lease, 32 hex digits.
        lease_id: LeaseId,
    },
    /// Move the caller into the lease. The descriptor is a pidfd of the caller.
    Run {
        /// The lease, 32 hex digits.
        lease_id: LeaseId,
    },
    /// Hand the lease over to a network namespace. The descriptor is that namespace.
    Enter {
        /// The lease, 32 hex digits.
        lease_id: LeaseId,
    },
    /// Connect the caller to the worker of the lease's session. No descriptor.
    GpuSession {
        /// The lease, 32 hex digits.
        lease_id: LeaseId,
        /// The session that the caller will open; 0: the lease's own session, which is started if it does not exist.
        session: u64,
    },
    /// Join the fabric whose CA has signed this certificate. For root and the daemon's own user. No descriptor.
    Join {
        /// The node's certificate, then that of the CA, as PEM.
        answer: String,
    },
}

/// The node's answer, such as `{"entered":{"place":"/sys/fs/cgroup/…"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The node answers.
    Pong {},
    /// Access to the lease ends after this time, unless it is renewed.
    Term {
        /// Milliseconds.
        remaining_ms: u64,
    },
    /// The process or namespace is in the lease.
    Entered {
        /// The place, for people.
        place: String,
        /// Environment variables for programs in the lease.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        environment: Vec<(String, String)>,
    },
    /// The descriptor beside this answer is a stream socket; the worker of the session has its other end.
    Session {},
    /// The node has joined the fabric, or was in it already.
    Joined {
        /// What has happened, for people.
        told: String,
    },
    /// The node refused. Nothing was moved.
    Refused {
        /// The name of the status, the same as in refusals over QUIC.
        error: String,
        /// The class: `permanent`, `transient` or `policy`.
        class: String,
        /// What failed and what to do.
        message: String,
    },
}

impl Request {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The message is too long or is no request; the text says what was expected.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > REQUEST_BYTES_MAX {
            let length = bytes.len();
            return Err(format!(
                "a request of {length} bytes; {REQUEST_BYTES_MAX} are allowed"
            ));
        }
        serde_json::from_slice(bytes).map_err(|error| format!("not a request: {error}"))
    }
}

impl Reply {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The message is no reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("not a reply: {error}"))
    }

    /// The refusal, if the node refused.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let Self::Refused {
            error,
            class,
            message,
        } = self
        else {
            return None;
        };
        let error = error.parse().unwrap_or(LeaseError::Internal);
        let class = class.parse().unwrap_or(RefusalClass::Permanent);
        Some(Refusal::new(error, class, message))
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            error: refusal.error.name().into(),
            class: refusal.class.name().into(),
            message: refusal.message,
        }
    }
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    // All fields are texts or numbers, which JSON can always represent.
    serde_json::to_vec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_the_page_says() {
        let lease_id = LeaseId(0xAB);
        let id = "000000000000000000000000000000ab";
        for (request, text) in [
            (Request::Ping {}, r#"{"ask":"ping"}"#.to_owned()),
            (
                Request::Term { lease_id },
                format!(r#"{{"ask":"term","lease_id":"{id}"}}"#),
            ),
            (
                Request::Run { lease_id },
                format!(r#"{{"ask":"run","lease_id":"{id}"}}"#),
            ),
            (
                Request::Enter { lease_id },
                format!(r#"{{"ask":"enter","lease_id":"{id}"}}"#),
            ),
            (
                Request::GpuSession {
                    lease_id,
                    session: u64::MAX,
                },
                format!(
                    r#"{{"ask":"gpu_session","lease_id":"{id}","session":18446744073709551615}}"#
                ),
            ),
            (
                Request::Join {
                    answer: "-----\n".into(),
                },
                r#"{"ask":"join","answer":"-----\n"}"#.to_owned(),
            ),
        ] {
            assert_eq!(request.encode(), text.as_bytes());
            assert_eq!(Request::decode(text.as_bytes()), Ok(request));
        }
        assert_eq!(Reply::Session {}.encode(), br#"{"session":{}}"#);
        let term = Reply::Term { remaining_ms: 7 };
        assert_eq!(term.encode(), br#"{"term":{"remaining_ms":7}}"#);
        let refusal = Refusal::new(
            LeaseError::NotFound,
            RefusalClass::Permanent,
            "no \"lease\"",
        );
        let reply = Reply::from(refusal.clone());
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply.clone()));
        assert_eq!(reply.refusal(), Some(refusal));
    }

    #[test]
    fn anything_else_is_no_request() {
        let id = "000000000000000000000000000000ab";
        let long = format!(r#"{{"ask":"ping"{}}}"#, " ".repeat(REQUEST_BYTES_MAX));
        for text in [
            "",
            "{",
            "[]",
            "\0\0",
            r#"{"ask":"exec","lease_id":"1"}"#,
            r#"{"ask":"run"}"#,
            r#"{"ask":"run","lease_id":"xyz"}"#,
            r#"{"ask":"run","lease_id":171}"#,
            &format!(r#"{{"ask":"gpu_session","lease_id":"{id}"}}"#),
            &format!(r#"{{"ask":"gpu_session","lease_id":"{id}","session":-1}}"#),
            &format!(r#"{{"ask":"run","lease_id":"{id}","uid":0}}"#),
            &format!(r#"{{"ask":"run","lease_id":"{id}"}}{{"ask":"ping"}}"#),
            &"[".repeat(REQUEST_BYTES_MAX),
            &long,
        ] {
            assert!(Request::decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
