//! Both forms of inventory, good and bad.

use fabricbios_wire::*;

use super::*;
use crate::samples;

#[rustfmt::skip] // One case a line.
pub(crate) fn inventories(c: &mut Vec<Case>) {
    let codes = [1, 2, 3, 4, 5, 0x10, 0xFF, 0x1234];
    let entries: Vec<_> = codes
        .iter()
        .map(|code| samples::entry(ResourceType::from_code(*code), 0))
        .collect();
    let mut flat = |name: &str, about: &str, entries: &[FlatEntry]| {
        let bytes = encode_flat(entries).unwrap_or_default();
        good(c, &format!("flat_{name}"), Kind::Flat, about, bytes, json(&entries));
    };
    flat("empty", "a node with nothing", &[]);
    flat("types", "every type, a vendor's and an unknown one", &entries);
    let fenced = samples::entry(ResourceType::Mem, resource_flags::FENCED);
    let degraded = samples::entry(ResourceType::Gpu, resource_flags::DEGRADED);
    flat("flags", "one fenced, one degraded", &[fenced, degraded]);
    let mut structured = |name: &str, about: &str, it: &ResourceInventory| {
        let bytes = encode_structured(it).unwrap_or_default();
        good(c, &format!("structured_{name}"), Kind::Structured, about, bytes, json(it));
    };
    structured("full", "every list and every extension", &samples::inventory());
    structured("empty", "a node with nothing", &empty_node());
    let bytes = with_extensions(
        &[
            tlv(0x0BFF, b"later"),
            tlv(0x0B02, &with_id(&[0, 0, 0, 0, 0, 0, 0, 9])),
        ]
        .concat(),
    );
    let extensions = vec![InventoryExtension::Available(samples::ARENA, 9)];
    let expect = Expect::Accepted(json(&ResourceInventory {
        extensions,
        ..empty_node()
    }));
    let (name, about) = (
        "structured_unknown_tag".to_owned(),
        "unknown tags are skipped".to_owned(),
    );
    c.push(Case {
        name,
        kind: Kind::Structured,
        about,
        bytes,
        expect,
    });
}

fn empty_node() -> ResourceInventory {
    ResourceInventory {
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
        ..samples::inventory()
    }
}

fn with_id(rest: &[u8]) -> Vec<u8> {
    [&samples::ARENA.0.to_be_bytes(), rest].concat()
}

/// An empty node with these extensions.
fn with_extensions(area: &[u8]) -> Vec<u8> {
    let whole = encode_structured(&empty_node()).unwrap_or_default();
    let length = u32::try_from(area.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&whole[..whole.len() - 4], &length, area].concat()
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_inventories(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, InvalidIntent, Malformed};
    let flat = encode_flat(&[samples::entry(ResourceType::Mem, 0)]).unwrap_or_default();
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_flat_{name}"), Kind::Flat, about, bytes, error);
    };
    add("cut", "35 of 36 bytes", flat[..flat.len() - 1].to_vec(), Malformed);
    add("count_2", "an entry that is not there", [&[0, 2], &flat[2..]].concat(), Malformed);
    add("count_absurd", "65,535 entries", [&[0xFF, 0xFF], &flat[2..]].concat(), Malformed);
    add("trailing", "a byte after the entry", [&flat[..], &[0]].concat(), Malformed);
    add(
        "zero_id",
        "a resource id of zero",
        [&flat[..2], &[0; 16], &flat[18..]].concat(),
        InvalidArgs,
    );
    let mut add = |name: &str, about: &str, bytes: Vec<u8>, error| {
        bad(c, &format!("bad_structured_{name}"), Kind::Structured, about, bytes, error);
    };
    let full = encode_structured(&samples::inventory()).unwrap_or_default();
    add("cut", "the last byte is missing", full[..full.len() - 1].to_vec(), Malformed);
    add("trailing", "a byte after the extensions", [&full[..], &[0]].concat(), Malformed);
    let many = [&full[..44], &[1, 1], &full[46..]].concat();
    add("count_257", "more arenas than a list has", many, Malformed);
    let mut ext = |name: &str, about: &str, tag: u16, value: &[u8]| {
        add(name, about, with_extensions(&tlv(tag, value)), InvalidIntent);
    };
    ext("name_long", "256 bytes", 0x0B01, &with_id(&[b'n'; 256]));
    ext("name_not_utf8", "0xff", 0x0B01, &with_id(&[0xFF]));
    ext("name_zero_id", "a resource id of zero", 0x0B01, &[0; 17]);
    ext("available_length", "7 bytes", 0x0B02, &with_id(&[0; 7]));
    ext("fenced_part_length", "9 bytes", 0x0B05, &with_id(&[0; 9]));
    ext("classes_empty", "no default", 0x0B03, &with_id(&[]));
    ext("classes_17", "17 supported classes", 0x0B03, &with_id(&[0; 18]));
    ext("transport_6", "an unknown transport", 0x0B04, &with_id(&[6]));
    ext("transports_9", "nine of them", 0x0B04, &with_id(&[1; 9]));
    ext("enforcement_2", "neither enforced nor best effort", 0x0B06, &with_id(&[0, 0, 1, 2]));
    ext("enforcement_length", "a class and a half", 0x0B06, &with_id(&[0, 1, 1]));
    ext("enforcement_zero_id", "a resource id of zero", 0x0B06, &[0; 18]);
    ext("enforcement_twice", "a class twice", 0x0B06, &with_id(&[1, 0, 1, 1]));
    ext("enforcement_descends", "the greater class first", 0x0B06, &with_id(&[1, 1, 0, 1]));
    let many = |each: usize| -> Vec<u8> {
        (0..17).flat_map(|class| [&[class][..], &vec![0; each]].concat()).collect()
    };
    ext("enforcement_17", "17 classes", 0x0B06, &with_id(&many(1)));
    let units = [0, 0, 0, 0, 0, 0, 0, 9];
    let one = |class: u8| [&[class][..], &units].concat();
    ext("class_available_length", "8 bytes", 0x0B07, &with_id(&units));
    ext("class_available_zero_id", "a resource id of zero", 0x0B07, &[0; 25]);
    ext("class_available_twice", "a class twice", 0x0B07, &with_id(&one(1).repeat(2)));
    let descend = [one(1), one(0)].concat();
    ext("class_available_descends", "the greater class first", 0x0B07, &with_id(&descend));
    ext("class_available_17", "17 classes", 0x0B07, &with_id(&many(8)));
    let slots = |words: [u16; 5]| {
        let words: Vec<u8> = words.iter().flat_map(|it| it.to_be_bytes()).collect();
        with_id(&words)
    };
    ext("slots_slices_free", "more free than there are", 0x0B09, &slots([7, 8, 1, 1, 16]));
    ext("slots_sessions_free", "more free than there are", 0x0B09, &slots([7, 7, 1, 2, 16]));
    ext("slots_9", "9 bytes", 0x0B09, &with_id(&[0; 9]));
    ext("slots_12", "a word too many", 0x0B09, &with_id(&[0; 12]));
    ext("slots_zero_id", "a resource id of zero", 0x0B09, &[0; 26]);
    ext("reason_long", "201 bytes", 0x0B0A, &with_id(&[b'n'; 201]));
    ext("reason_not_utf8", "0xff", 0x0B0A, &with_id(&[0xFF]));
    ext("reason_length", "half an id", 0x0B0A, &[0; 8]);
    let limits = [0, 0, 14, 16, 0, 0, 0, 60, 0];
    ext("limits_of_a_resource", "an id other than zero", 0x0B0B, &with_id(&limits));
    let of_node = |rest: &[u8]| [&[0; 16], rest].concat();
    ext("limits_24", "24 bytes", 0x0B0B, &of_node(&limits[..8]));
    ext("limits_26", "26 bytes", 0x0B0B, &of_node(&[&limits[..], &[0]].concat()));
    ext("limits_profile_2", "neither Linux nor bare metal", 0x0B0B, &of_node(&[&limits[..8], &[2]].concat()));
    let most = |how: u8| [&[how][..], &units, &units].concat();
    ext("admission_17", "no number of classes", 0x0B0C, &with_id(&[0]));
    ext("admission_classes", "two classes that are not there", 0x0B0C, &with_id(&[0, 2, 1]));
    ext("admission_zero_id", "a resource id of zero", 0x0B0C, &[0; 18]);
    ext("admission_half", "half an amount", 0x0B0C, &with_id(&[&[0, 0], &most(0)[..9]].concat()));
    ext("admission_17_classes", "17 classes", 0x0B0C, &with_id(&[&[0, 17][..], &(0..17).collect::<Vec<u8>>()].concat()));
    ext("admission_9", "nine amounts", 0x0B0C, &with_id(&[vec![0, 0], (0..9).flat_map(most).collect()].concat()));
    ext("admission_class_twice", "a class twice", 0x0B0C, &with_id(&[0, 2, 1, 1]));
    ext("admission_descends", "the greater way first", 0x0B0C, &with_id(&[&[0, 0][..], &most(2), &most(0)].concat()));
    let functions = |total: u32, free: u32| {
        with_id(&[total.to_be_bytes(), free.to_be_bytes()].concat())
    };
    ext("functions_free", "more free than there are", 0x0B08, &functions(7, 8));
    ext("functions_7", "7 bytes", 0x0B08, &with_id(&[0; 7]));
    ext("functions_9", "9 bytes", 0x0B08, &with_id(&[0; 9]));
    ext("functions_zero_id", "a resource id of zero", 0x0B08, &[0; 24]);
}
