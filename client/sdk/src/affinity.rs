//! Affinities as text: `STRENGTH:CATEGORY=TARGET`.

use std::fmt;

use base16ct::{lower::encode_string, mixed::decode};
use fabricbios_wire::{AFFINITY_TARGET_BYTES_MAX, Affinity};

use crate::json::{Object, field};

/// The words of the numbers from 1 on.
const STRENGTHS: [&str; 3] = ["required", "preferred", "avoid"];
const CATEGORIES: [&str; 5] = ["resource", "node", "rack", "tenant", "data"];

const RESOURCE_ID: u8 = 1;
const LEASE_ID: u8 = 2;
const NODE_ID: u8 = 3;
const LABEL: u8 = 4;

/// Parses `STRENGTH:CATEGORY=TARGET`. A target of the right length in hex is an id, everything else is a label.
///
/// # Errors
/// What is wrong, and what to write instead.
pub fn affinity(text: &str) -> Result<Affinity, String> {
    let form = || -> String {
        "write STRENGTH:CATEGORY=TARGET, such as avoid:tenant=acme; STRENGTH is required, preferred or avoid, \
         CATEGORY is resource, node, rack, tenant or data"
            .into()
    };
    let (strength, rest) = text.split_once(':').ok_or_else(form)?;
    let (category, target) = rest.split_once('=').ok_or_else(form)?;
    let strength = match strength {
        "near" => "preferred",
        other => other,
    };
    let (target_type, target) = self::target(category, target)?;
    Ok(Affinity {
        category: number(&CATEGORIES, category).ok_or_else(form)?,
        strength: number(&STRENGTHS, strength).ok_or_else(form)?,
        target_type,
        target,
    })
}

fn number(words: &[&str], word: &str) -> Option<u8> {
    (1..)
        .zip(words)
        .find_map(|(number, it)| (*it == word).then_some(number))
}

fn target(category: &str, text: &str) -> Result<(u8, Vec<u8>), String> {
    let (target_type, bytes) = match category {
        "resource" => (RESOURCE_ID, 16),
        "data" => (LEASE_ID, 16),
        "node" => (NODE_ID, 32),
        _ => (LABEL, 0),
    };
    let mut id = vec![0; bytes];
    if bytes > 0 && text.len() == 2 * bytes && decode(text, &mut id).is_ok() {
        return match id.iter().all(|byte| *byte == 0) {
            true => Err(format!("no {category} has an id of zeros")),
            false => Ok((target_type, id)),
        };
    }
    match text.len() {
        1..=AFFINITY_TARGET_BYTES_MAX => Ok((LABEL, text.as_bytes().to_vec())),
        _ => Err(format!(
            "a target has 1 to {AFFINITY_TARGET_BYTES_MAX} bytes"
        )),
    }
}

/// An affinity in words.
#[derive(Debug)]
pub struct AffinityWords {
    strength: &'static str,
    category: &'static str,
    target: String,
}

impl From<&Affinity> for AffinityWords {
    fn from(it: &Affinity) -> Self {
        let word = |words: &[&'static str], number: u8| {
            let index = usize::from(number).checked_sub(1);
            let word = index.and_then(|index| words.get(index));
            word.copied().unwrap_or("unknown")
        };
        Self {
            strength: word(&STRENGTHS, it.strength),
            category: word(&CATEGORIES, it.category),
            target: match it.target_type {
                LABEL => String::from_utf8_lossy(&it.target).into_owned(),
                _ => encode_string(&it.target),
            },
        }
    }
}

impl AffinityWords {
    /// The words as JSON.
    #[must_use]
    pub fn json(self) -> Object<'static> {
        Object::from([
            field("strength", self.strength),
            field("category", self.category),
            field("target", self.target),
        ])
    }
}

impl fmt::Display for AffinityWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", self.strength, self.category, self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinities_are_read_and_written_alike() {
        let node = "ab".repeat(32);
        let (resource, data) = ("0000000000000000000000000000feed", "12".repeat(16));
        let cases = [
            (format!("required:resource={resource}"), (1, 1, RESOURCE_ID)),
            (format!("preferred:data={data}"), (5, 2, LEASE_ID)),
            (format!("avoid:node={node}"), (2, 3, NODE_ID)),
            ("preferred:resource=mem0".to_owned(), (1, 2, LABEL)),
            (format!("avoid:tenant={data}"), (4, 3, LABEL)),
            ("required:rack=row 3=b:1".to_owned(), (3, 1, LABEL)),
        ];
        for (text, (category, strength, target_type)) in cases {
            let read = affinity(&text).unwrap();
            assert_eq!(
                (read.category, read.strength, read.target_type),
                (category, strength, target_type),
                "{text}"
            );
            assert_eq!(AffinityWords::from(&read).to_string(), text);
        }
        assert_eq!(affinity("near:rack=r1"), affinity("preferred:rack=r1"));
    }

    #[test]
    fn what_is_no_affinity_is_told_the_form() {
        let zeros = format!("avoid:data={}", "0".repeat(32));
        let long = format!("avoid:rack={}", "x".repeat(256));
        let cases = [
            ("", "STRENGTH:CATEGORY=TARGET"),
            ("rack=r1", "STRENGTH:CATEGORY=TARGET"),
            ("avoid:rack", "STRENGTH:CATEGORY=TARGET"),
            ("far:rack=r1", "required, preferred or avoid"),
            ("avoid:planet=mars", "resource, node, rack, tenant or data"),
            ("avoid:rack=", "1 to 255 bytes"),
            (&long, "1 to 255 bytes"),
            (&zeros, "zeros"),
        ];
        for (text, part) in cases {
            let error = affinity(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
