//! Reads and writes the tables of the file.

use std::collections::BTreeMap;

use fabricbios_lease::FORMAT;
use fabricbios_wire::{Epoch, LeaseId, ResourceId};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::{Group, Key, Recovered, changes::Changes};

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Number of commits. A file that was restored from a copy has a lower number than the stores that keep the number too.
const COMMITS: &str = "commits";
/// Wall-clock time of the last write.
const WRITTEN: &str = "written_unix_ms";

/// Identity of the log.
const LOG: &str = "log";

const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");

type Table = TableDefinition<'static, u128, &'static [u8]>;

/// Makes the key of a table's record from its id.
type OfId = fn(u128) -> Key;

/// The format before the records of leases had [`fabricbios_lease::LeaseRecord::requested`], their last field.
const WITHOUT_REQUESTS: u64 = 8;
/// Added to the number of the format while newer commits are in a log: a version that knows no log refuses the file.
const WITH_LOG: u64 = 1000;
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

/// What a journal says of itself.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) format: u64,
    /// The log that has the newest commits; `None`: the file has them all.
    pub(super) log: Option<u64>,
    /// The number of the newest commit in the file.
    pub(super) commits: u64,
}

pub(super) fn head(database: &impl ReadableDatabase) -> Result<Head, redb::Error> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    let number = |name| -> Result<u64, redb::Error> {
        Ok(numbers.get(name)?.map_or(0, |value| value.value()))
    };
    let (format, commits) = (number("format")?, number(COMMITS)?);
    Ok(match format.checked_sub(WITH_LOG) {
        Some(format) => Head {
            format,
            log: Some(number(LOG)?),
            commits,
        },
        None => Head {
            format,
            log: None,
            commits,
        },
    })
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
    let without_requests = head(database)?.format == WITHOUT_REQUESTS;
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
    put_log(&writing, FORMAT, None)?;
    Ok(writing.commit()?)
}

/// Writes down a start, with the log of its commits, and every record if an earlier version wrote the file.
pub(super) fn write_start(
    database: &Database,
    contents: &Recovered,
    log: u64,
) -> Result<(), redb::Error> {
    let is_converted = head(database)?.format != FORMAT;
    let writing = begin(database)?;
    match is_converted {
        true => put_all(&writing, contents)?,
        false => put_start(&writing, contents)?,
    }
    put_log(&writing, FORMAT, Some(log))?;
    Ok(writing.commit()?)
}

/// Brings the changes up to the commit with this number into the file. `log` has the later ones; `None`: there are none.
pub(super) fn checkpoint(
    database: &Database,
    number: u64,
    changes: &Changes,
    log: Option<u64>,
) -> Result<(), redb::Error> {
    let format = head(database)?.format;
    let writing = begin(database)?;
    {
        let mut numbers = writing.open_table(NUMBERS)?;
        numbers.insert(COMMITS, number)?;
        if let Some(written) = changes.stamp.written_unix_ms {
            numbers.insert(WRITTEN, written)?;
        }
    }
    put_boot(&writing, changes.stamp.boot_id.as_deref())?;
    put_records(&writing, &changes.records)?;
    put_log(&writing, format, log)?;
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
    numbers.insert("epoch", contents.epoch.0)?;
    numbers.insert(COMMITS, contents.commits)?;
    numbers.insert(WRITTEN, contents.written_unix_ms)?;
    put_boot(writing, contents.last_boot_id.as_deref())
}

fn put_log(writing: &WriteTransaction, format: u64, log: Option<u64>) -> Result<(), redb::Error> {
    let mut numbers = writing.open_table(NUMBERS)?;
    let with = log.map_or(0, |_| WITH_LOG);
    numbers.insert("format", format + with)?;
    numbers.insert(LOG, log.unwrap_or(0))?;
    Ok(())
}

fn put_boot(writing: &WriteTransaction, boot_id: Option<&str>) -> Result<(), redb::Error> {
    let mut texts = writing.open_table(TEXTS)?;
    if let Some(boot_id) = boot_id {
        texts.insert("boot_id", boot_id)?;
    }
    Ok(())
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
