//! 0x0B01–0x0B05: additions to the structured inventory of the sources. Every value begins with the
//! id of its resource; every tag may repeat.

use alloc::{string::String, vec::Vec};

use crate::{
    CLASSES_MAX, DecodeError, EXTENSIONS_MAX, InventoryExtension, RESOURCE_NAME_BYTES_MAX,
    ResourceId, TRANSPORTS_MAX, Transport, tag,
    tlv::{Tlv, TlvArea},
    write::{Writer, cut},
};

const ID_LEN: usize = 16;

pub(crate) fn read(area: &TlvArea<'_>) -> Result<Vec<InventoryExtension>, DecodeError> {
    let mut extensions = Vec::new();
    for tlv in area.iter() {
        let Some(extension) = read_one(&tlv)? else {
            continue;
        };
        if extensions.len() == EXTENSIONS_MAX {
            return Err(tlv.unknown_value(0, "extensions", "at most 1024 of them", "more"));
        }
        extensions.push(extension);
    }
    Ok(extensions)
}

fn read_one(tlv: &Tlv<'_>) -> Result<Option<InventoryExtension>, DecodeError> {
    Ok(Some(match tlv.tag {
        tag::INVENTORY_NAME => read_name(tlv)?,
        tag::INVENTORY_AVAILABLE => amount(tlv, InventoryExtension::Available)?,
        tag::INVENTORY_CLASSES => read_classes(tlv)?,
        tag::INVENTORY_TRANSPORTS => read_transports(tlv)?,
        tag::INVENTORY_FENCED_PART => amount(tlv, InventoryExtension::FencedPart)?,
        _ => return Ok(None),
    }))
}

fn split_id<'a>(tlv: &Tlv<'a>) -> Result<(ResourceId, &'a [u8]), DecodeError> {
    match tlv.value.split_first_chunk::<ID_LEN>() {
        Some((id, _)) if *id == [0; ID_LEN] => {
            Err(tlv.unknown_value(0, "resource_id", "an id other than zero", "zero"))
        }
        Some((id, rest)) => Ok((ResourceId(u128::from_be_bytes(*id)), rest)),
        None => Err(tlv.wrong_length("at least 16 bytes".into())),
    }
}

fn read_name(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, _) = split_id(tlv)?;
    let name = tlv.text(ID_LEN, RESOURCE_NAME_BYTES_MAX)?;
    Ok(InventoryExtension::Name(resource_id, String::from(name)))
}

fn amount(
    tlv: &Tlv<'_>,
    of: impl FnOnce(ResourceId, u64) -> InventoryExtension,
) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    let units = rest
        .try_into()
        .ok()
        .ok_or_else(|| tlv.wrong_length("24 bytes".into()))?;
    Ok(of(resource_id, u64::from_be_bytes(units)))
}

fn read_classes(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    match split_id(tlv)? {
        (resource_id, [default, supported @ ..]) if supported.len() <= CLASSES_MAX => {
            let (default, supported) = (*default, supported.to_vec());
            Ok(InventoryExtension::Classes {
                resource_id,
                default,
                supported,
            })
        }
        _ => Err(tlv.wrong_length("17 to 33 bytes".into())),
    }
}

fn read_transports(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    if rest.len() > TRANSPORTS_MAX {
        return Err(tlv.wrong_length("at most 24 bytes".into()));
    }
    let transport = |(at, byte): (usize, &u8)| {
        Transport::from_byte(*byte)
            .ok_or_else(|| tlv.unknown_value(ID_LEN + at, "transport", "0 to 5", byte))
    };
    let transports = rest
        .iter()
        .enumerate()
        .map(transport)
        .collect::<Result<_, _>>()?;
    Ok(InventoryExtension::Transports(resource_id, transports))
}

pub(crate) fn write(w: &mut Writer, extensions: &[InventoryExtension]) {
    for extension in extensions {
        let (tag, value) = encode(extension);
        w.tlv(tag, &value);
    }
}

fn encode(extension: &InventoryExtension) -> (u16, Vec<u8>) {
    let with_id = |id: &ResourceId, rest: &[u8]| [&id.0.to_be_bytes(), rest].concat();
    match extension {
        InventoryExtension::Name(id, name) => {
            let name = cut(name, RESOURCE_NAME_BYTES_MAX);
            (tag::INVENTORY_NAME, with_id(id, name.as_bytes()))
        }
        InventoryExtension::Available(id, units) => {
            (tag::INVENTORY_AVAILABLE, with_id(id, &units.to_be_bytes()))
        }
        InventoryExtension::Classes {
            resource_id,
            default,
            supported,
        } => (
            tag::INVENTORY_CLASSES,
            with_id(resource_id, &[&[*default], &supported[..]].concat()),
        ),
        InventoryExtension::Transports(id, transports) => {
            let transports: Vec<u8> = transports
                .iter()
                .map(|transport| *transport as u8)
                .collect();
            (tag::INVENTORY_TRANSPORTS, with_id(id, &transports))
        }
        InventoryExtension::FencedPart(id, units) => (
            tag::INVENTORY_FENCED_PART,
            with_id(id, &units.to_be_bytes()),
        ),
    }
}
