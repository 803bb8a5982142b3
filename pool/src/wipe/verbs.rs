//! What a wiping process can be told to do, as arguments, and doing it.

mod words;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use base16ct::lower::encode_string;
use fabricbios_wire::LeaseId;

use super::zero::{Identity, write_header, zero};
use crate::device::dm::{self, Slice, Target};
use crate::device::header::Header;
use crate::directory::{self, Inode, remove_if_there};

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
    Record {
        device: PathBuf,
        header: Header,
    },
    Map(Slice),
    Make {
        directory: PathBuf,
        identity: Inode,
        lease: LeaseId,
        bytes: u64,
    },
    Mark {
        file: PathBuf,
        text: String,
    },
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove { .. } => f.write_str("removing files"),
            Self::Unmap { .. } => f.write_str("removing the device"),
            Self::Record { .. } => f.write_str("writing the header"),
            Self::Map(_) => f.write_str("making the device"),
            Self::Make { .. } => f.write_str("making a file"),
            Self::Mark { .. } => f.write_str("writing the marker"),
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
                encode_string(identity).into(),
                offset.to_string().into(),
                length.to_string().into(),
            ],
            Self::Record { device, header } => {
                vec![
                    "record".into(),
                    device.into(),
                    encode_string(&header.encode()).into(),
                ]
            }
            Self::Map(slice) => map_words(slice).map(OsString::from).into(),
            Self::Make {
                directory,
                identity: (device, inode),
                lease,
                bytes,
            } => vec![
                "make".into(),
                directory.into(),
                device.to_string().into(),
                inode.to_string().into(),
                lease.to_string().into(),
                bytes.to_string().into(),
            ],
            Self::Mark { file, text } => vec!["mark".into(), file.into(), text.into()],
        }
    }

    pub(super) fn parse(words: &[&OsStr]) -> Result<Self, String> {
        let parsed = match words {
            [verb, directory, names @ ..] if *verb == "remove" => words::remove(directory, names),
            [verb, uuid] if *verb == "unmap" => uuid.to_str().map(|uuid| Self::Unmap {
                uuid: uuid.to_owned(),
            }),
            [verb, device, rest @ ..] if *verb == "zero" => words::zero(device, rest),
            [verb, device, header] if *verb == "record" => words::record(device, header),
            [verb, rest @ ..] if *verb == "map" => words::map(rest),
            [verb, directory, rest @ ..] if *verb == "make" => words::make(directory, rest),
            [verb, file, text] if *verb == "mark" => text.to_str().map(|text| Self::Mark {
                file: PathBuf::from(file),
                text: text.to_owned(),
            }),
            _ => None,
        };
        parsed.ok_or_else(|| {
            format!(
                "arguments {words:?}: expected `remove DIRECTORY NAME…`, `unmap UUID`, \
                 `zero DEVICE IDENTITY OFFSET LENGTH`, `record DEVICE HEADER`, \
                 `map NAME UUID DEVICE SECTOR SECTORS ro|rw`, \
                 `make DIRECTORY DEVICE INODE LEASE BYTES` or `mark FILE TEXT`"
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
            Self::Record { device, header } => write_header(device, header),
            Self::Map(slice) => dm::Control::open()?.make(slice),
            Self::Make {
                directory,
                identity,
                lease,
                bytes,
            } => directory::make(directory, *identity, *lease, *bytes),
            Self::Mark { file, text } => directory::write_marker(file, text),
        }
    }
}

fn map_words(slice: &Slice) -> [String; 7] {
    let Target {
        length, parameters, ..
    } = &slice.target;
    let (device, sector) = parameters.split_once(' ').unwrap_or_default();
    [
        "map".to_owned(),
        slice.name.clone(),
        slice.uuid.clone(),
        device.to_owned(),
        sector.to_owned(),
        length.to_string(),
        if slice.read_only { "ro" } else { "rw" }.to_owned(),
    ]
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
    use crate::device::dm::DeviceNumber;

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
            Verb::Record {
                device: "/dev/x".into(),
                header: Header {
                    sequence: 3,
                    identity: [0xA5; 16],
                    node: fabricbios_wire::NodeId([7; 32]),
                    virgin_from: 1 << 20,
                    grants: 9,
                },
            },
            Verb::Map(Slice {
                name: "fabricbios-1".into(),
                uuid: "FABRICBIOS-1".into(),
                target: Target::linear(DeviceNumber { major: 8, minor: 1 }, 1 << 20, 2 << 20),
                read_only: true,
            }),
            Verb::Make {
                directory: "/p".into(),
                identity: (5, 77),
                lease: LeaseId(0xA1),
                bytes: 4096,
            },
            Verb::Mark {
                file: "/p/marker".into(),
                text: "two\nlines\n".into(),
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
            &["record", "/dev/x", "00"],
            &["map", "n", "u", "8", "0", "8", "rw"],
            &["map", "n", "u", "8:1", "0", "8", "maybe"],
            &["make", "/p", "1", "2", "no lease", "4096"],
            &["mark", "/p/marker"],
        ] {
            let refusal = parse(words).unwrap_err();
            assert!(refusal.contains("expected `remove"), "{words:?}: {refusal}");
        }
    }
}
