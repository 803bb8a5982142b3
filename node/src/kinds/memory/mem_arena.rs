//! `--mem-arena`: memory on offer, with a name, a file and a NUMA node of its own.

use std::{path::PathBuf, str::FromStr};

use fabricbios_wire::{RESOURCE_NAME_BYTES_MAX, Size};

use crate::kinds::settings::values::{self, BadValue};

/// Granularity of memory, bytes.
const PAGE_BYTES: u64 = 4096;

/// An arena that is offered as one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemArena {
    /// The name in inventories, from which the resource id is made: 1 to 255 bytes.
    pub name: String,
    /// Bytes to offer: whole pages.
    pub bytes: Size,
    /// The file that holds the bytes; `None`: memory that ends with the process.
    pub file: Option<PathBuf>,
    /// The preferred NUMA node; `None`: the node of the RDMA device, if the kernel reports one.
    pub numa_node: Option<u32>,
}

/// Text that does not describe an arena.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NAME=SIZE[,file=PATH][,numa-node=N] is expected, such as near=64GiB,file=/dev/shm/near,numa-node=1: {0}"
)]
pub struct BadMemArena(String);

impl MemArena {
    /// The name of the arena of `--mem-bytes`, and of the machine's memory in inventories.
    pub const MEM0: &'static str = "mem0";
}

impl FromStr for MemArena {
    type Err = BadMemArena;

    fn from_str(text: &str) -> Result<Self, BadMemArena> {
        let bad = |why: String| Err(BadMemArena(why));
        let mut parts = text.split(',');
        let Some((name, size)) = parts.next().and_then(|it| it.split_once('=')) else {
            return bad("it begins with no NAME=SIZE".into());
        };
        if !(1..=RESOURCE_NAME_BYTES_MAX).contains(&name.len())
            || !name.bytes().all(|it| it.is_ascii_graphic())
        {
            return bad(format!(
                "a name has 1 to {RESOURCE_NAME_BYTES_MAX} letters, digits and signs of ASCII, without spaces"
            ));
        }
        let mut arena = Self {
            name: name.to_owned(),
            bytes: pages(size).map_err(|why| BadMemArena(why.to_string()))?,
            file: None,
            numa_node: None,
        };
        for part in parts {
            let twice = match part.split_once('=') {
                Some(("file", path)) if !path.is_empty() => {
                    arena.file.replace(path.into()).is_some()
                }
                Some(("numa-node", node)) => match node.parse() {
                    Ok(node) => arena.numa_node.replace(node).is_some(),
                    Err(_) => return bad(format!("numa-node={node} is no number")),
                },
                _ => return bad(format!("{part:?} is neither file=PATH nor numa-node=N")),
            };
            if twice {
                return bad(format!("{part:?} is the second of its kind"));
            }
        }
        Ok(arena)
    }
}

/// Reads a number of bytes of memory on offer, in whole pages.
pub(super) fn pages(text: &str) -> Result<Size, BadValue> {
    let size = values::size(Size(PAGE_BYTES)..=values::MOST, "256MiB")(text)?;
    match size.0.is_multiple_of(PAGE_BYTES) {
        true => Ok(size),
        false => Err(BadValue::Form(
            "memory is offered in whole pages of 4096 bytes",
            "256MiB",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_has_a_name_a_size_and_perhaps_a_file_and_a_node() {
        let plain = MemArena {
            name: "near".into(),
            bytes: Size(4096),
            file: None,
            numa_node: None,
        };
        assert_eq!("near=4096".parse(), Ok(plain.clone()));
        let placed = MemArena {
            file: Some("/dev/shm/a=b".into()),
            numa_node: Some(1),
            ..plain
        };
        for text in [
            "near=4KiB,file=/dev/shm/a=b,numa-node=1",
            "near=4KiB,numa-node=1,file=/dev/shm/a=b",
        ] {
            assert_eq!(text.parse(), Ok(placed.clone()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = format!("{}=4096", "n".repeat(256));
        for (text, why) in [
            ("near", "no NAME=SIZE"),
            ("=4096", "1 to 255"),
            ("a b=4096", "without spaces"),
            (&long, "1 to 255"),
            ("near=4097", "whole pages"),
            ("near=", "256MiB"),
            ("near=4096,file=", "\"file=\" is neither"),
            ("near=4096,", "\"\" is neither"),
            ("near=4096,path=/a", "\"path=/a\" is neither"),
            ("near=4096,numa-node=", "is no number"),
            ("near=4096,numa-node=-1", "is no number"),
            ("near=4096,numa-node=0,numa-node=1", "second of its kind"),
            ("near=4096,file=/a,file=/b", "second of its kind"),
        ] {
            let error = text.parse::<MemArena>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("near=64GiB,"), "{error}");
        }
    }
}
