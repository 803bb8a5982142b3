//! The tables of the file, and how they are read and written.

use redb::{
    Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction,
};

use super::{Group, Key};
use crate::clock;

/// Of the tables below. Format 1 held values without versions of their own, format 2 no pools.
pub(super) const FORMAT: u64 = 3;

const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
/// Commits of groups so far. A file that was put back from a copy has fewer than what was beside it.
const COMMITS: &str = "commits";
/// When something was last written, by the wall clock.
const WRITTEN: &str = "written_unix_ms";

const TEXTS: TableDefinition<&str, &str> = TableDefinition::new("texts");
const LEASES: TableDefinition<u128, &[u8]> = TableDefinition::new("leases");
const FENCES: TableDefinition<u128, &[u8]> = TableDefinition::new("fences");
const POOLS: TableDefinition<u128, &[u8]> = TableDefinition::new("pools");
/// A file of an earlier version has none.
const MARKS: TableDefinition<u128, &[u8]> = TableDefinition::new("marks");

/// Everything in the file.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) epoch: u64,
    pub(super) commits: u64,
    pub(super) boot_id: Option<String>,
    /// Of the wall clock, at the last write.
    pub(super) written_unix_ms: u64,
    pub(super) leases: Vec<(u128, Vec<u8>)>,
    pub(super) fences: Vec<(u128, Vec<u8>)>,
    pub(super) pools: Vec<(u128, Vec<u8>)>,
    pub(super) marks: Vec<(u128, Vec<u8>)>,
}

pub(super) fn format_of(database: &Database) -> Result<u64, redb::Error> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get("format")?.map_or(0, |value| value.value()))
}

pub(super) fn read(database: &Database) -> Result<Contents, redb::Error> {
    let reading = database.begin_read()?;
    let boot_id = reading
        .open_table(TEXTS)?
        .get("boot_id")?
        .map(|text| text.value().to_owned());
    let numbers = reading.open_table(NUMBERS)?;
    let number = |name| -> Result<u64, redb::Error> {
        Ok(numbers.get(name)?.map_or(0, |value| value.value()))
    };
    Ok(Contents {
        epoch: number("epoch")?,
        commits: number(COMMITS)?,
        written_unix_ms: number(WRITTEN)?,
        boot_id,
        leases: read_all(&reading.open_table(LEASES)?)?,
        fences: read_all(&reading.open_table(FENCES)?)?,
        pools: read_all(&reading.open_table(POOLS)?)?,
        marks: match reading.open_table(MARKS) {
            Err(TableError::TableDoesNotExist(_)) => Vec::new(),
            opened => read_all(&opened?)?,
        },
    })
}

fn read_all(
    table: &impl ReadableTable<u128, &'static [u8]>,
) -> Result<Vec<(u128, Vec<u8>)>, redb::Error> {
    let copy = |entry: Result<_, redb::StorageError>| {
        let (key, value): (redb::AccessGuard<'_, u128>, redb::AccessGuard<'_, &[u8]>) = entry?;
        Ok((key.value(), value.value().to_vec()))
    };
    table.iter()?.map(copy).collect()
}

/// A transaction that is durable when `commit` returns, and without which the file is damaged from then on: in
/// redb's one-phase mode a commit whose bytes have changed since is taken for one that never ended, and the one
/// before it for the newest (docs/decisions/0011).
fn begin(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut writing = database.begin_write()?;
    writing.set_two_phase_commit(true);
    Ok(writing)
}

pub(super) fn write_contents(database: &Database, contents: &Contents) -> Result<(), redb::Error> {
    let writing = begin(database)?;
    put_start(&writing, contents)?;
    let tables = [
        (LEASES, &contents.leases),
        (FENCES, &contents.fences),
        (POOLS, &contents.pools),
        (MARKS, &contents.marks),
    ];
    for (definition, records) in tables {
        let mut table = writing.open_table(definition)?;
        for (key, value) in records {
            table.insert(key, value.as_slice())?;
        }
    }
    Ok(writing.commit()?)
}

pub(super) fn write_start(database: &Database, contents: &Contents) -> Result<(), redb::Error> {
    let writing = begin(database)?;
    put_start(&writing, contents)?;
    Ok(writing.commit()?)
}

fn put_start(writing: &WriteTransaction, contents: &Contents) -> Result<(), redb::Error> {
    let mut numbers = writing.open_table(NUMBERS)?;
    numbers.insert("format", FORMAT)?;
    numbers.insert("epoch", contents.epoch)?;
    numbers.insert(COMMITS, contents.commits)?;
    numbers.insert(WRITTEN, clock::now().unix_ms)?;
    let mut texts = writing.open_table(TEXTS)?;
    if let Some(boot_id) = &contents.boot_id {
        texts.insert("boot_id", boot_id.as_str())?;
    }
    Ok(())
}

/// The number of the commit.
pub(super) fn write_group(database: &Database, group: &Group) -> Result<u64, redb::Error> {
    let writing = begin(database)?;
    let number;
    {
        let mut numbers = writing.open_table(NUMBERS)?;
        number = numbers.get(COMMITS)?.map_or(0, |before| before.value()) + 1;
        numbers.insert(COMMITS, number)?;
        numbers.insert(WRITTEN, clock::now().unix_ms)?;
        let mut leases = writing.open_table(LEASES)?;
        let mut fences = writing.open_table(FENCES)?;
        let mut pools = writing.open_table(POOLS)?;
        let mut marks = writing.open_table(MARKS)?;
        for (key, value) in group {
            let (table, id) = match key {
                Key::Lease(id) => (&mut leases, id),
                Key::Fence(id) => (&mut fences, id),
                Key::Pool(id) => (&mut pools, id),
                Key::Mark(id) => (&mut marks, id),
            };
            match value {
                Some(value) => table.insert(id, value.as_slice())?,
                None => table.remove(id)?,
            };
        }
    }
    writing.commit()?;
    Ok(number)
}
