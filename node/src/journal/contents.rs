//! Reads and writes the tables of the file.

use std::collections::BTreeMap;

use fabricbios_lease::FORMAT;
use fabricbios_wire::{Epoch, LeaseId, ResourceId};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{Group, Key, Recovered};
use crate::process::clock;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Number of commits. A file that was restored from a copy has a lower number than the stores that keep the number too.
const COMMITS: &str = "commits";
/// Wall-clock time of the last write.
const WRITTEN: &str = "written_unix_ms";

const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");

type Table = TableDefinition<'static, u128, &'static [u8]>;

/// Makes the key of a table's record from its id.
type OfId = fn(u128) -> Key;

/// The format before the records of leases had [`fabricbios_lease::LeaseRecord::requested`], their last field.
const WITHOUT_REQUESTS: u64 = 8;
/// `None` as the last field of a record.
const NONE: u8 = 0;

/// One table for each sort of key.
const TABLES: [(Table, OfId); 5] = [
    (Table::new("leases"), |id| Key::Lease(LeaseId(id))),
    (Table::new("fences"), |id| Key::Fence(ResourceId(id))),
    (Table::new("pools"), Key::Pool),
    (Table::new("marks"), |id| Key::Mark(ResourceId(id))),
    (Table::new("hosts"), Key::Host),
];

pub(super) fn format_of(database: &impl ReadableDatabase) -> Result<u64, redb::Error> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get("format")?.map_or(0, |value| value.value()))
}

pub(super) fn read(database: &impl ReadableDatabase) -> Result<Recovered, redb::Error> {
    let reading = database.begin_read()?;
    let last_boot_id = reading
        .open_table(TEXTS)?
        .get("boot_id")?
        .map(|text| text.value().to_owned());
    let numbers = reading.open_table(NUMBERS)?;
    let number = |name| -> Result<u64, redb::Error> {
        Ok(numbers.get(name)?.map_or(0, |value| value.value()))
    };
    let without_requests = number("format")? == WITHOUT_REQUESTS;
    let mut records = BTreeMap::new();
    for (definition, of_id) in TABLES {
        for entry in reading.open_table(definition)?.iter()? {
            let (id, value) = entry?;
            let (key, mut value) = (of_id(id.value()), value.value().to_vec());
            if without_requests && matches!(key, Key::Lease(_)) {
                value.push(NONE);
            }
            records.insert(key, value.into());
        }
    }
    Ok(Recovered {
        epoch: Epoch(number("epoch")?),
        commits: number(COMMITS)?,
        written_unix_ms: number(WRITTEN)?,
        last_boot_id,
        records,
    })
}

/// Begins a two-phase transaction, which is durable when `commit` returns. In redb's one-phase mode a commit that is
/// damaged later counts as unfinished, and the commit before it as the newest (docs/decisions/0011).
fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut writing = database.begin_write()?;
    writing.set_two_phase_commit(true);
    Ok(writing)
}

pub(super) fn write_contents(database: &Database, contents: &Recovered) -> Result<(), redb::Error> {
    let writing = begin(database)?;
    put_all(&writing, contents)?;
    Ok(writing.commit()?)
}

/// Writes down a start, and every record if an earlier version wrote the file.
pub(super) fn write_start(database: &Database, contents: &Recovered) -> Result<(), redb::Error> {
    let is_converted = format_of(database)? != FORMAT;
    let writing = begin(database)?;
    match is_converted {
        true => put_all(&writing, contents)?,
        false => put_start(&writing, contents)?,
    }
    Ok(writing.commit()?)
}

fn put_all(writing: &WriteTransaction, contents: &Recovered) -> Result<(), redb::Error> {
    put_start(writing, contents)?;
    let records = contents.records.iter();
    let group = records.map(|(key, value)| (*key, Some(value.clone())));
    put_records(writing, &group.collect())
}

fn put_start(writing: &WriteTransaction, contents: &Recovered) -> Result<(), redb::Error> {
    let mut numbers = writing.open_table(NUMBERS)?;
    numbers.insert("format", FORMAT)?;
    numbers.insert("epoch", contents.epoch.0)?;
    numbers.insert(COMMITS, contents.commits)?;
    numbers.insert(WRITTEN, contents.written_unix_ms)?;
    put_boot(writing, contents.last_boot_id.as_deref())
}

fn put_boot(writing: &WriteTransaction, boot_id: Option<&str>) -> Result<(), redb::Error> {
    let mut texts = writing.open_table(TEXTS)?;
    if let Some(boot_id) = boot_id {
        texts.insert("boot_id", boot_id)?;
    }
    Ok(())
}

/// What a group says of the boot. The time of the last write belongs to the boot that is written: a later start compares
/// it with the clock of another boot.
pub(super) enum Boot<'a> {
    /// The first group on this boot with leases or fences.
    Begins(&'a str),
    /// The boot is written.
    GoesOn,
    /// No leases or fences were written on this boot yet.
    IsNotWritten,
}

/// Commits a group and returns the number of the commit.
pub(super) fn write_group(
    database: &Database,
    group: &Group,
    boot: Boot<'_>,
) -> Result<u64, redb::Error> {
    let writing = begin(database)?;
    let number;
    {
        let mut numbers = writing.open_table(NUMBERS)?;
        number = numbers.get(COMMITS)?.map_or(0, |before| before.value()) + 1;
        numbers.insert(COMMITS, number)?;
        if !matches!(boot, Boot::IsNotWritten) {
            numbers.insert(WRITTEN, clock::now().unix_ms)?;
        }
    }
    if let Boot::Begins(boot_id) = boot {
        put_boot(&writing, Some(boot_id))?;
    }
    put_records(&writing, group)?;
    writing.commit()?;
    Ok(number)
}

fn put_records(writing: &WriteTransaction, group: &Group) -> Result<(), redb::Error> {
    for (definition, of_id) in TABLES {
        let mut table = writing.open_table(definition)?;
        for (key, value) in group.range(of_id(0)..=of_id(u128::MAX)) {
            match value {
                Some(value) => table.insert(id_of(*key), value.as_slice())?,
                None => table.remove(id_of(*key))?,
            };
        }
    }
    Ok(())
}

fn id_of(key: Key) -> u128 {
    match key {
        Key::Lease(LeaseId(id))
        | Key::Fence(ResourceId(id))
        | Key::Pool(id)
        | Key::Mark(ResourceId(id))
        | Key::Host(id) => id,
    }
}
