//! What a wiping process can be told to do, as arguments, and doing it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use super::zero::{Identity, zero};
use crate::device::dm;
use crate::directory::remove_if_there;

/// Says that there is progress; fails when nobody wants to know any more.
pub(super) type Say<'a> = &'a dyn Fn() -> Result<(), String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Remove {
        directory: PathBuf,
        names: Vec<OsString>,
    },
    Unmap {
        uuid: String,
    },
    Zero {
        device: PathBuf,
        identity: Identity,
        offset: u64,
        length: u64,
    },
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove { .. } => f.write_str("removing files"),
            Self::Unmap { .. } => f.write_str("removing the device"),
            Self::Zero { offset, length, .. } => write!(f, "zeroing {length} bytes at {offset}"),
        }
    }
}

impl Verb {
    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        match self {
            Self::Remove { directory, names } => {
                let mut arguments = vec!["remove".into(), directory.into()];
                arguments.extend(names.iter().cloned());
                arguments
            }
            Self::Unmap { uuid } => vec!["unmap".into(), uuid.into()],
            Self::Zero {
                device,
                identity,
                offset,
                length,
            } => vec![
                "zero".into(),
                device.into(),
                format!("{:032x}", u128::from_be_bytes(*identity)).into(),
                offset.to_string().into(),
                length.to_string().into(),
            ],
        }
    }

    pub(super) fn parse(words: &[&OsStr]) -> Result<Self, String> {
        let parsed = match words {
            [verb, directory, names @ ..] if *verb == "remove" => remove(directory, names),
            [verb, uuid] if *verb == "unmap" => uuid.to_str().map(|uuid| Self::Unmap {
                uuid: uuid.to_owned(),
            }),
            [verb, device, rest @ ..] if *verb == "zero" => parse_zero(device, rest),
            _ => None,
        };
        parsed.ok_or_else(|| {
            format!(
                "arguments {words:?}: expected `remove DIRECTORY NAME…`, `unmap UUID` or \
                 `zero DEVICE IDENTITY OFFSET LENGTH`"
            )
        })
    }

    pub(super) fn perform(&self, say: Say<'_>) -> Result<(), String> {
        match self {
            Self::Remove { directory, names } => remove_names(directory, names, say),
            Self::Unmap { uuid } => {
                let control = dm::Control::open()?;
                control.remove_patiently(uuid)?;
                say()
            }
            Self::Zero {
                device,
                identity,
                offset,
                length,
            } => zero(device, *identity, *offset, *length, say),
        }
    }
}

fn remove(directory: &OsStr, names: &[&OsStr]) -> Option<Verb> {
    let is_name = |name: &&OsStr| {
        let mut parts = Path::new(name).components();
        matches!(parts.next(), Some(Component::Normal(part)) if part == *name)
    };
    let directory = PathBuf::from(directory);
    let whole = directory.is_absolute() && !names.is_empty() && names.iter().all(is_name);
    whole.then(|| Verb::Remove {
        directory,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

fn parse_zero(device: &OsStr, rest: &[&OsStr]) -> Option<Verb> {
    let [identity, offset, length] = rest else {
        return None;
    };
    let identity = identity.to_str().filter(|text| text.len() == 32)?;
    Some(Verb::Zero {
        device: PathBuf::from(device),
        identity: u128::from_str_radix(identity, 16).ok()?.to_be_bytes(),
        offset: offset.to_str()?.parse().ok()?,
        length: length.to_str()?.parse().ok()?,
    })
}

fn remove_names(directory: &Path, names: &[OsString], say: Say<'_>) -> Result<(), String> {
    for name in names {
        let path = directory.join(name);
        remove_if_there(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        say()?;
    }
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| format!("{}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Verb, String> {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        Verb::parse(&words)
    }

    #[test]
    fn what_is_told_is_what_is_understood() {
        let verbs = [
            Verb::Remove {
                directory: "/p".into(),
                names: vec!["a".into(), "b".into()],
            },
            Verb::Unmap { uuid: "U".into() },
            Verb::Zero {
                device: "/dev/x".into(),
                identity: [0xA5; 16],
                offset: 0,
                length: u64::MAX,
            },
        ];
        for verb in verbs {
            let arguments = verb.to_arguments();
            let words: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
            assert_eq!(Verb::parse(&words).unwrap(), verb);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let identity = "00000000000000000000000000000001";
        for words in [
            &[][..],
            &["remove"],
            &["remove", "/p"],
            &["remove", "relative", "a"],
            &["remove", "/p", "../a"],
            &["remove", "/p", "a/b"],
            &["remove", "/p", ".."],
            &["unmap"],
            &["unmap", "a", "b"],
            &["zero", "/dev/x", identity, "0"],
            &["zero", "/dev/x", "1", "0", "512"],
            &["zero", "/dev/x", identity, "-1", "512"],
            &["zero", "/dev/x", identity, "0", "512", "more"],
            &["discard", "/dev/x"],
        ] {
            let refusal = parse(words).unwrap_err();
            assert!(refusal.contains("expected `remove"), "{words:?}: {refusal}");
        }
    }
}
