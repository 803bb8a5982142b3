//! 0x0B01–0x0B0C: additions to the structured inventory of the sources. Every value begins with the
//! id of its resource; every tag may repeat.

use alloc::{string::String, vec::Vec};

use crate::{
    ADMISSION_MOST_MAX, CLASSES_MAX, DecodeError, EXTENSIONS_MAX, Enforcement,
    HEALTH_REASON_BYTES_MAX, InventoryExtension, RESOURCE_NAME_BYTES_MAX, ResourceId,
    TRANSPORTS_MAX, Transport, tag,
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
            return Err(tlv.unknown_value(0, "extensions", "at most 2048 of them", "more"));
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
        tag::INVENTORY_CLASS_ENFORCEMENT => read_enforcement(tlv)?,
        tag::INVENTORY_CLASS_AVAILABLE => read_class_available(tlv)?,
        tag::INVENTORY_VIRTUAL_FUNCTIONS => read_virtual_functions(tlv)?,
        tag::INVENTORY_GPU_SLOTS => read_gpu_slots(tlv)?,
        tag::INVENTORY_HEALTH_REASON => read_health_reason(tlv)?,
        tag::INVENTORY_LIMITS => read_limits(tlv)?,
        tag::INVENTORY_ADMISSION => read_admission(tlv)?,
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

/// An extension whose id may be zero: the node itself.
fn read_health_reason(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let id = tlv.value.first_chunk::<ID_LEN>();
    let id = id.ok_or_else(|| tlv.wrong_length("at least 16 bytes".into()))?;
    let id = ResourceId(u128::from_be_bytes(*id));
    let reason = tlv.text(ID_LEN, HEALTH_REASON_BYTES_MAX)?;
    Ok(InventoryExtension::HealthReason(id, String::from(reason)))
}

/// Its id is zero: the node itself.
fn read_limits(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let wrong_length = || tlv.wrong_length("25 bytes".into());
    let (id, rest) = { tlv.value.split_first_chunk::<ID_LEN>() }.ok_or_else(wrong_length)?;
    let &[l0, l1, l2, l3, g0, g1, g2, g3, profile] = rest else {
        return Err(wrong_length());
    };
    if *id != [0; ID_LEN] {
        return Err(tlv.unknown_value(0, "resource_id", "zero, the node", "another id"));
    }
    if profile > 1 {
        return Err(tlv.unknown_value(ID_LEN + 8, "bare_metal", "0 or 1", profile));
    }
    Ok(InventoryExtension::Limits {
        lease_secs_max: u32::from_be_bytes([l0, l1, l2, l3]),
        grace_secs_max: u32::from_be_bytes([g0, g1, g2, g3]),
        bare_metal: profile == 1,
    })
}

fn read_admission(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let wrong_length = || tlv.wrong_length("18 bytes, the classes, and 17 for each amount".into());
    let (resource_id, [flags, n, rest @ ..]) = split_id(tlv)? else {
        return Err(wrong_length());
    };
    let (n, flags) = (usize::from(*n), *flags);
    let (forbidden, most) = rest.split_at_checked(n).ok_or_else(wrong_length)?;
    let (most, []) = most.as_chunks::<17>() else {
        return Err(wrong_length());
    };
    if n > CLASSES_MAX || most.len() > ADMISSION_MOST_MAX {
        return Err(tlv.wrong_length("at most 16 classes and 8 amounts".into()));
    }
    if !forbidden.is_sorted_by(|one, next| one < next) {
        return Err(tlv.unknown_value(ID_LEN + 2, "classes", "each once, ascending", "others"));
    }
    let units = |it: &[u8]| it.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let most = most.iter();
    let most = most.map(|it| (it[0], units(&it[1..9]), units(&it[9..])));
    let most: Vec<(u8, u64, u64)> = most.collect();
    if !most.is_sorted_by(|one, next| one.0 < next.0) {
        let at = ID_LEN + 2 + n;
        return Err(tlv.unknown_value(at, "amounts", "each way once, ascending", "others"));
    }
    Ok(InventoryExtension::Admission {
        resource_id,
        flags,
        forbidden: forbidden.to_vec(),
        most,
    })
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

fn read_enforcement(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    let (pairs, []) = rest.as_chunks::<2>() else {
        return Err(tlv.wrong_length("16 bytes and 2 for each class".into()));
    };
    if pairs.len() > CLASSES_MAX {
        return Err(tlv.wrong_length("at most 48 bytes".into()));
    }
    let classes = pairs.iter().enumerate().map(|(at, &[class, byte])| {
        let at = ID_LEN + 2 * at + 1;
        let enforcement = Enforcement::from_byte(byte);
        let enforcement =
            enforcement.ok_or_else(|| tlv.unknown_value(at, "enforcement", "0 or 1", byte))?;
        Ok((class, enforcement))
    });
    let classes = classes.collect::<Result<Vec<_>, _>>()?;
    ascending(tlv, &classes)?;
    Ok(InventoryExtension::ClassEnforcement(resource_id, classes))
}

fn read_class_available(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    let (classes, []) = rest.as_chunks::<9>() else {
        return Err(tlv.wrong_length("16 bytes and 9 for each class".into()));
    };
    if classes.len() > CLASSES_MAX {
        return Err(tlv.wrong_length("at most 160 bytes".into()));
    }
    let units = |&[class, a, b, c, d, e, f, g, h]: &[u8; 9]| {
        (class, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    };
    let classes: Vec<_> = classes.iter().map(units).collect();
    ascending(tlv, &classes)?;
    Ok(InventoryExtension::ClassAvailable(resource_id, classes))
}

/// Refuses a repeated class, which two readers could take differently.
fn ascending<T>(tlv: &Tlv<'_>, classes: &[(u8, T)]) -> Result<(), DecodeError> {
    match classes.is_sorted_by(|(one, _), (next, _)| one < next) {
        true => Ok(()),
        false => Err(tlv.unknown_value(ID_LEN, "classes", "each once, ascending", "others")),
    }
}

fn read_virtual_functions(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    let rest: [u8; 8] = rest
        .try_into()
        .ok()
        .ok_or_else(|| tlv.wrong_length("24 bytes".into()))?;
    let [t0, t1, t2, t3, f0, f1, f2, f3] = rest;
    let (total, free) = (
        u32::from_be_bytes([t0, t1, t2, t3]),
        u32::from_be_bytes([f0, f1, f2, f3]),
    );
    if free > total {
        return Err(tlv.unknown_value(ID_LEN + 4, "free", "at most the total", free));
    }
    Ok(InventoryExtension::VirtualFunctions {
        resource_id,
        total,
        free,
    })
}

fn read_gpu_slots(tlv: &Tlv<'_>) -> Result<InventoryExtension, DecodeError> {
    let (resource_id, rest) = split_id(tlv)?;
    let (words, []) = rest.as_chunks::<2>() else {
        return Err(tlv.wrong_length("26 bytes".into()));
    };
    let &[slices, free_slices, sessions, free_sessions, queues] = words else {
        return Err(tlv.wrong_length("26 bytes".into()));
    };
    let number = u16::from_be_bytes;
    for (at, total, free) in [(2, slices, free_slices), (6, sessions, free_sessions)] {
        if number(free) > number(total) {
            let free = number(free);
            return Err(tlv.unknown_value(ID_LEN + at, "free", "at most the total", free));
        }
    }
    Ok(InventoryExtension::GpuSlots {
        resource_id,
        compute_slices: number(slices),
        compute_slices_free: number(free_slices),
        session_slots: number(sessions),
        session_slots_free: number(free_sessions),
        queue_slots: number(queues),
    })
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
        InventoryExtension::HealthReason(id, reason) => {
            let reason = cut(reason, HEALTH_REASON_BYTES_MAX);
            (tag::INVENTORY_HEALTH_REASON, with_id(id, reason.as_bytes()))
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
        InventoryExtension::ClassEnforcement(id, classes) => {
            let pairs = classes.iter().flat_map(|&(class, it)| [class, it as u8]);
            let pairs: Vec<u8> = pairs.collect();
            (tag::INVENTORY_CLASS_ENFORCEMENT, with_id(id, &pairs))
        }
        InventoryExtension::ClassAvailable(id, classes) => {
            let value = |&(class, units): &(u8, u64)| [&[class][..], &units.to_be_bytes()].concat();
            let classes: Vec<u8> = classes.iter().flat_map(value).collect();
            (tag::INVENTORY_CLASS_AVAILABLE, with_id(id, &classes))
        }
        InventoryExtension::Limits {
            lease_secs_max,
            grace_secs_max,
            bare_metal,
        } => {
            let value = [
                &lease_secs_max.to_be_bytes()[..],
                &grace_secs_max.to_be_bytes(),
                &[u8::from(*bare_metal)],
            ];
            (
                tag::INVENTORY_LIMITS,
                with_id(&ResourceId(0), &value.concat()),
            )
        }
        InventoryExtension::Admission {
            resource_id,
            flags,
            forbidden,
            most,
        } => {
            let forbidden = forbidden.get(..CLASSES_MAX).unwrap_or(forbidden);
            let count = u8::try_from(forbidden.len()).unwrap_or(u8::MAX);
            let amounts = most.iter().flat_map(|(how, now, empty)| {
                [&[*how][..], &now.to_be_bytes(), &empty.to_be_bytes()].concat()
            });
            let amounts: Vec<u8> = amounts.collect();
            let value = [&[*flags, count], forbidden, &amounts].concat();
            (tag::INVENTORY_ADMISSION, with_id(resource_id, &value))
        }
        InventoryExtension::VirtualFunctions {
            resource_id,
            total,
            free,
        } => {
            let value = u64::from(*total) << 32 | u64::from(*free);
            let value = with_id(resource_id, &value.to_be_bytes());
            (tag::INVENTORY_VIRTUAL_FUNCTIONS, value)
        }
        InventoryExtension::GpuSlots {
            resource_id,
            compute_slices,
            compute_slices_free,
            session_slots,
            session_slots_free,
            queue_slots,
        } => {
            let words = [
                compute_slices,
                compute_slices_free,
                session_slots,
                session_slots_free,
                queue_slots,
            ];
            let value: Vec<u8> = words.iter().flat_map(|it| it.to_be_bytes()).collect();
            (tag::INVENTORY_GPU_SLOTS, with_id(resource_id, &value))
        }
    }
}
