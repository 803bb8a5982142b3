//! What the operator wants of all schedulers of the fabric, which they only read. Pure: no I/O, no clock.

use fabricbios_placement::Policy;
use serde::Deserialize;

use super::record::{Unreadable, read};

/// What etcd holds of it. Other keys below `intent/` are for later versions.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    /// The policy of the last record that could be read; `None`: there is no record, so each scheduler's own one holds.
    policy: Option<Policy>,
    /// The last unreadable revision, which a log line has told.
    complained: Option<i64>,
}

impl Intent {
    pub(crate) fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// The record as it is now, with the revision of its last change; `None`: there is none. Whether the policy has changed.
    pub(crate) fn take(&mut self, record: Option<(i64, &[u8])>) -> bool {
        let policy = match record.map(|(at, value)| (at, read_policy(value))) {
            None => None,
            Some((_, Ok(policy))) => Some(policy),
            Some((mod_revision, Err(why))) => {
                if self.complained.replace(mod_revision) != Some(mod_revision) {
                    tracing::warn!(mod_revision, %why, "the policy in etcd is not used: the last one stays");
                }
                return false;
            }
        };
        std::mem::replace(&mut self.policy, policy) != policy
    }
}

/// `{"version":1,"policy":"binpack"}`.
fn read_policy(value: &[u8]) -> Result<Policy, Unreadable> {
    #[derive(Deserialize)]
    struct Record {
        policy: String,
    }
    let Record { policy } = read(value)?;
    let parsed = policy.parse();
    parsed.map_err(|why| Unreadable::Garbage(format!("its policy: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINPACK: &[u8] = br#"{"version":1,"policy":"binpack"}"#;

    #[test]
    fn a_policy_is_read_and_anything_else_has_a_reason() {
        assert_eq!(read_policy(BINPACK), Ok(Policy::Binpack));
        // What another program has added harms nothing.
        let more = br#"{"policy":"cache-aware","by":"ops","version":1}"#;
        assert_eq!(read_policy(more), Ok(Policy::CacheAware));
        let later = br#"{"version":2,"policy":["spread"]}"#;
        assert_eq!(read_policy(later), Err(Unreadable::Later(2)));
        let long = format!(r#"{{"version":1,"policy":"{}"}}"#, "é".repeat(30_000));
        for garbage in [
            "",
            "binpack",
            "\u{0}",
            r#"{"version":0,"policy":"spread"}"#,
            r#"{"version":1}"#,
            r#"{"version":1,"policy":"Spread"}"#,
            r#"{"version":1,"policy":7}"#,
            r#"{"policy":"spread"}"#,
            &long,
        ] {
            let Err(Unreadable::Garbage(why)) = read_policy(garbage.as_bytes()) else {
                panic!("{garbage:.40} is read");
            };
            assert!(why.len() < 300, "{why}");
        }
    }

    #[test]
    fn what_cannot_be_read_leaves_the_last_policy_and_a_record_that_is_gone_leaves_none() {
        let mut intent = Intent::default();
        assert!(!intent.take(None));
        assert!(!intent.take(Some((2, b"garbage"))));
        assert_eq!(intent.policy(), None);
        assert!(intent.take(Some((3, BINPACK))));
        assert!(!intent.take(Some((3, BINPACK))), "it has not changed");
        for bad in [&b"garbage"[..], br#"{"version":2}"#] {
            assert!(!intent.take(Some((4, bad))));
            assert_eq!(intent.policy(), Some(Policy::Binpack));
        }
        assert!(intent.take(None));
        assert_eq!(intent.policy(), None);
    }
}
