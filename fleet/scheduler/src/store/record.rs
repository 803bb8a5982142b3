//! What etcd holds: one key for each member, under the fabric's fingerprint, one for each scheduler, and the policy.

use std::net::SocketAddr;

use fabricbios_fabric::FabricId;
use fabricbios_wire::{AwayNode, Endpoint, LABEL_BYTES_MAX, LABELS_MAX, NodeId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;
/// The largest record. That of a node with all labels is a tenth of this.
const BYTES_MAX: usize = 64 * 1024;

/// A node that belongs to the fabric. It stays when the node is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// Where clients reach the node, `ADDR:PORT`.
    pub(crate) endpoint: String,
    /// The labels of its certificate.
    pub(crate) labels: Vec<String>,
    /// Its first report to a scheduler, milliseconds of the scheduler's wall clock.
    pub(crate) first_seen_unix_ms: u64,
    /// When it came last, or when it was lost last.
    pub(crate) last_seen_unix_ms: u64,
}

/// Why a record is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// It is left alone.
    #[error("it has version {0}, and this scheduler reads version {VERSION}: use a newer one")]
    Later(u32),
    /// One of a node is replaced by its next first report.
    #[error("it is no such record: {0}")]
    Garbage(String),
}

impl Record {
    pub(crate) fn new(endpoint: String, labels: Vec<String>, first: u64, last: u64) -> Self {
        Self {
            version: VERSION,
            endpoint,
            labels,
            first_seen_unix_ms: first,
            last_seen_unix_ms: last,
        }
    }

    pub(crate) fn read(value: &[u8]) -> Result<Self, Unreadable> {
        let record: Self = read(value)?;
        let checked = record.check();
        checked.map_err(|why| Unreadable::Garbage(why.into()))?;
        Ok(record)
    }

    /// What a scheduler has never written.
    fn check(&self) -> Result<(), &'static str> {
        if self.reached_at().is_none_or(|it| it.is_wildcard()) {
            return Err("its endpoint is no ADDR:PORT of one machine");
        }
        let is_long = |label: &String| label.len() > LABEL_BYTES_MAX;
        if self.labels.len() > LABELS_MAX || self.labels.iter().any(is_long) {
            return Err("it has more or longer labels than a certificate may have");
        }
        Ok(())
    }

    fn reached_at(&self) -> Option<Endpoint> {
        self.endpoint.parse::<SocketAddr>().ok().map(Endpoint::from)
    }

    /// The node, as it is shown while it is away.
    pub(crate) fn as_away(&self, node_id: NodeId) -> Option<AwayNode> {
        Some(AwayNode {
            node_id,
            endpoint: self.reached_at()?,
            last_seen_unix_ms: self.last_seen_unix_ms,
            labels: self.labels.clone(),
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Texts and numbers in a struct have no part that cannot be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Reads a record of any kind, if it has the version that this program knows.
pub(super) fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let garbage = |error: serde_json::Error| Unreadable::Garbage(error.to_string());
    if value.len() > BYTES_MAX {
        let why = format!("{} bytes, and at most {BYTES_MAX} may be", value.len());
        return Err(Unreadable::Garbage(why));
    }
    let Versioned { version } = serde_json::from_slice(value).map_err(garbage)?;
    match version {
        VERSION => serde_json::from_slice(value).map_err(garbage),
        later if later > VERSION => Err(Unreadable::Later(later)),
        other => Err(Unreadable::Garbage(format!("version {other}"))),
    }
}

/// What a key is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Node(NodeId),
    Scheduler(NodeId),
    /// The placement policy of all schedulers.
    Policy,
}

/// The keys of one fabric.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn of(fabric: FabricId) -> Self {
        let prefix = format!("/fabricbios/v1/{fabric}/");
        Self { prefix }
    }

    pub(crate) fn node(&self, id: NodeId) -> Vec<u8> {
        format!("{}nodes/{id}", self.prefix).into_bytes()
    }

    pub(crate) fn scheduler(&self, id: NodeId) -> Vec<u8> {
        format!("{}schedulers/{id}", self.prefix).into_bytes()
    }

    /// The first key of the fabric, and the first one behind its keys.
    pub(crate) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let first = self.prefix.clone().into_bytes();
        let mut end = first.clone();
        if let Some(last) = end.last_mut() {
            // From `/` to `0`.
            *last += 1;
        }
        (first, end)
    }

    /// `None`: a key of something else, which a later version may have made.
    pub(crate) fn read(&self, key: &[u8]) -> Option<Key> {
        let key = std::str::from_utf8(key).ok()?;
        let (of, id) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        if (of, id) == ("intent", "policy") {
            return Some(Key::Policy);
        }
        let node_id: NodeId = id.parse().ok()?;
        // One node has one key: not a second one in capitals.
        match of {
            _ if node_id.to_string() != id => None,
            "nodes" => Some(Key::Node(node_id)),
            "schedulers" => Some(Key::Scheduler(node_id)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_anything_else_has_a_reason() {
        let record = Record::new("192.0.2.7:5701".into(), vec!["rack=r7".into()], 1, 2);
        assert_eq!(Record::read(&record.to_bytes()), Ok(record.clone()));
        let text = String::from_utf8(record.to_bytes()).unwrap();
        let later = text.replace("\"version\":1", "\"version\":2");
        assert_eq!(Record::read(later.as_bytes()), Err(Unreadable::Later(2)));
        // A later version may have other fields.
        let other = Record::read(br#"{"version":7,"where":"elsewhere"}"#);
        assert_eq!(other, Err(Unreadable::Later(7)));
        let big = format!(r#"{{"version":1,"x":"{}"}}"#, "x".repeat(BYTES_MAX));
        let nowhere = text.replace("192.0.2.7:5701", "0.0.0.0:5701");
        let unnamed = text.replace("192.0.2.7:5701", "somewhere");
        let labels = text.replace(r#"["rack=r7"]"#, &format!("{:?}", ["a=b"; 17]));
        let deep = format!(r#"{{"version":{}1"#, "[".repeat(4096));
        let garbage = ["", "null", "\u{0}", r#"{"version":0}"#, r#"{"version":1}"#];
        for bytes in
            garbage
                .into_iter()
                .chain([&big[..], &nowhere, &unnamed, &labels, &deep, &text[1..]])
        {
            let read = Record::read(bytes.as_bytes());
            assert!(matches!(read, Err(Unreadable::Garbage(_))), "{bytes:.40}");
        }
    }

    #[test]
    fn a_key_names_one_node_or_scheduler_of_this_fabric() {
        let keys = Keys::of(FabricId([7; 16]));
        let id = NodeId([0xab; 32]);
        assert_eq!(keys.read(&keys.node(id)), Some(Key::Node(id)));
        assert_eq!(keys.read(&keys.scheduler(id)), Some(Key::Scheduler(id)));
        let (first, end) = keys.range();
        for key in [keys.node(id), keys.scheduler(id)] {
            assert!(first < key && key < end);
        }
        let of_other = Keys::of(FabricId([8; 16])).node(id);
        let capitals = String::from_utf8(keys.node(id)).unwrap();
        let capitals = capitals.replace("abab", "ABAB").into_bytes();
        let short = keys.node(id)[..60].to_vec();
        let of_prefix = |rest: &str| format!("{}{rest}", keys.prefix).into_bytes();
        assert_eq!(keys.read(&of_prefix("intent/policy")), Some(Key::Policy));
        let [later, deep] = ["intent/cordon", "intent/policy/x"].map(of_prefix);
        for key in [of_other, capitals, short, later, deep, vec![0xff], vec![]] {
            assert_eq!(keys.read(&key), None);
        }
    }
}
