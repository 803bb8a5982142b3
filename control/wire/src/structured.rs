//! The structured inventory (000, "Structured Inventory Format"): node, epoch, health, five lists, and then (ours) an
//! area of TLVs for later additions about the same resources.

use alloc::vec::Vec;

use crate::{
    Epoch, INVENTORY_LIST_MAX, NodeId, ResourceInventory, inventory_tlv,
    read::{Decoded, Reader},
    write::Writer,
};

/// Bytes of an inventory without resources: node, five counts, and the length of the area.
pub(crate) const MIN_LEN: usize = 32 + 8 + 4 + 5 * 2 + 4;

/// An entry of a list: the id of a resource, then numbers.
pub(crate) trait Entry: Sized {
    /// Bytes of one entry.
    const LEN: usize;
    /// The name of the list, for errors.
    const LIST: &'static str;

    fn read(r: &mut Reader<'_>) -> Decoded<Self>;
    fn write(&self, w: &mut Writer);
}

/// Declares an entry. Each line: field and type, in the order of the bytes.
macro_rules! entry {
    ($(#[$about:meta])* pub struct $entry:ident, $list:literal { $($(#[$about_field:meta])* $field:ident: $type:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "vectors", derive(serde::Serialize))]
        pub struct $entry {
            /// The id of the resource.
            pub resource_id: crate::ResourceId,
            $($(#[$about_field])* pub $field: $type,)*
        }

        impl crate::structured::Entry for $entry {
            const LEN: usize = 16 $(+ size_of::<$type>())*;
            const LIST: &'static str = $list;

            fn read(r: &mut crate::read::Reader<'_>) -> crate::read::Decoded<Self> {
                Ok(Self {
                    resource_id: r.resource_id()?,
                    $($field: r.$type(stringify!($field))?,)*
                })
            }

            fn write(&self, w: &mut crate::write::Writer) {
                w.u128(self.resource_id.0)$(.$type(self.$field))*;
            }
        }
    };
}

pub(crate) use entry;

/// Reads a whole structured inventory.
///
/// # Errors
/// If the bytes are no structured inventory.
pub fn decode_structured(bytes: &[u8]) -> Decoded<ResourceInventory> {
    let mut r = Reader::new(bytes, 0);
    let inventory = read(&mut r)?;
    r.finish()?;
    Ok(inventory)
}

/// Writes a whole structured inventory; `None` when it is longer than a payload may be.
#[must_use]
pub fn encode_structured(inventory: &ResourceInventory) -> Option<Vec<u8>> {
    let mut w = Writer::new();
    write(&mut w, inventory);
    w.payload()
}

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<ResourceInventory> {
    Ok(ResourceInventory {
        node_id: NodeId(r.array("node_id")?),
        epoch: Epoch(r.u64("epoch")?),
        health: r.u32("health")?,
        mem_arenas: read_list(r)?,
        block_devs: read_list(r)?,
        cpu_caps: read_list(r)?,
        nics: read_list(r)?,
        gpus: read_list(r)?,
        extensions: inventory_tlv::read(&r.area("extensions")?)?,
    })
}

fn read_list<T: Entry>(r: &mut Reader<'_>) -> Decoded<Vec<T>> {
    r.list(INVENTORY_LIST_MAX, T::LEN, T::LIST, T::read)
}

pub(crate) fn write(w: &mut Writer, inventory: &ResourceInventory) {
    w.raw(&inventory.node_id.0)
        .u64(inventory.epoch.0)
        .u32(inventory.health);
    write_list(w, &inventory.mem_arenas);
    write_list(w, &inventory.block_devs);
    write_list(w, &inventory.cpu_caps);
    write_list(w, &inventory.nics);
    write_list(w, &inventory.gpus);
    w.area(|w| inventory_tlv::write(w, &inventory.extensions));
}

fn write_list<T: Entry>(w: &mut Writer, entries: &[T]) {
    w.list(entries, INVENTORY_LIST_MAX, |w, entry| entry.write(w));
}
