//! What a pool is.

use fabricbios_lease::{AllocationMode, Extent};

use crate::error::Error;

/// Properties of a pool, from the kernel and from its header or marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Identity of the pool, wherever it is attached.
    pub identity: [u8; 16],
    /// The path in the settings.
    pub name: String,
    /// Name of the device in the kernel, such as `nvme0n1`.
    pub device: Option<String>,
    /// Size for leases in bytes, including existing leases.
    pub capacity: u64,
    /// Granularity of leases in bytes.
    pub align: u64,
    /// Block size in bytes: 512 to 4096.
    pub block_bytes: u32,
    /// How leases are allocated: as extents of a device, or as amounts of a directory.
    pub allocation_mode: AllocationMode,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether it is removable.
    pub removable: bool,
}

impl Facts {
    /// Checks that an extent is valid for a lease: whole blocks within the pool.
    pub(crate) fn admits(&self, extent: Extent) -> Result<(), Error> {
        let block = u64::from(self.block_bytes);
        let whole = extent.offset.is_multiple_of(block) && extent.length.is_multiple_of(block);
        if extent.length == 0 || !whole {
            let name = &self.name;
            return Err(Error::Order(format!(
                "{extent:?} of {name}: not whole blocks of {block} bytes"
            )));
        }
        let end = extent.offset.checked_add(extent.length);
        let within = self.allocation_mode == AllocationMode::Amounts
            || end.is_some_and(|end| end <= self.capacity);
        if !within {
            let (name, capacity) = (&self.name, self.capacity);
            return Err(Error::Order(format!(
                "{extent:?}: {name} ends at {capacity}"
            )));
        }
        Ok(())
    }
}
