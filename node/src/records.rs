//! Encodes records for the journal: a version byte, then the record.

use anyhow::{Context, bail};
use fabricbios_lease::{BootTime, Extent, FenceRecord, LeaseRecord, Placement, RECORDS_VERSION};
use fabricbios_wire::{
    BlockTerms, CpuExecutionMode, CpuIsolationClass, CpuPartition, CpuTerms, Effective,
    Enforcement, Generation, GpuExclusivityClass, GpuTerms, LeaseEnd, LeaseId, LeaseIntent,
    LeasePhase, LeaseTerms, MemTerms, NetTerms, ResourceId, ResourceType, Transport,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Earlier versions, which are still read.
const VERSION_3: u8 = 3;
const VERSION_4: u8 = 4;
const VERSION_5: u8 = 5;
const VERSION_6: u8 = 6;

/// A record that can be read in its earlier versions.
pub(crate) trait Record: DeserializeOwned {
    /// Its form in [`VERSION_3`].
    type Version3: DeserializeOwned + Into<Self>;
    /// Its form in [`VERSION_4`].
    type Version4: DeserializeOwned + Into<Self>;
    /// Its form in [`VERSION_5`].
    type Version5: DeserializeOwned + Into<Self>;
    /// Its form in [`VERSION_6`].
    type Version6: DeserializeOwned + Into<Self>;
}

impl Record for LeaseRecord {
    type Version3 = LeaseBefore6<Extent, Absent, BlockTerms>;
    type Version4 = LeaseBefore6<Extent, Option<Box<LeaseEnd>>, BlockTerms>;
    type Version5 = LeaseBefore6<Placement, Option<Box<LeaseEnd>>, TermsBefore6>;
    type Version6 = LeaseBefore7<
        Placement,
        Option<Box<LeaseEnd>>,
        Effective6,
        Terms6,
        Option<Box<LeaseIntent>>,
    >;
}

impl Record for FenceRecord {
    type Version3 = Self;
    type Version4 = Self;
    type Version5 = Self;
    type Version6 = Self;
}

/// A [`LeaseRecord`] before version 6: without an intent. Before version 5 it had block terms only, and stretches were
/// the only placement.
type LeaseBefore6<Part, End, Terms> = LeaseBefore7<Part, End, EffectiveBefore6, Terms, Absent>;

/// A [`LeaseRecord`] before version 7.
#[derive(Deserialize)]
pub(crate) struct LeaseBefore7<Part, End, Classes, Terms, Intent> {
    lease_id: LeaseId,
    tenant: String,
    resource_id: ResourceId,
    resource_type: ResourceType,
    capacity: u64,
    part: Option<Part>,
    generation: Generation,
    granted_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    effective: Classes,
    term_secs: u32,
    grace_secs: u32,
    deadline: BootTime,
    ended: Option<LeasePhase>,
    end: End,
    cannot_go_on: bool,
    fenced_by_release: bool,
    terms: Option<Box<Terms>>,
    intent: Intent,
}

/// A part that a version does not have: zero bytes of a record.
#[derive(Deserialize)]
pub(crate) struct Absent;

impl From<Absent> for Option<Box<LeaseEnd>> {
    fn from(_: Absent) -> Self {
        None
    }
}

impl From<Absent> for Option<Box<LeaseIntent>> {
    fn from(_: Absent) -> Self {
        None
    }
}

/// An [`Effective`] before version 6.
#[derive(Deserialize)]
pub(crate) struct EffectiveBefore6 {
    cpu_isolation: Option<CpuIsolationClass>,
    gpu_exclusivity: Option<GpuExclusivityClass>,
    transport: Option<Transport>,
    rotate_on_renew: bool,
    read_only: bool,
    mutual_auth: bool,
}

impl From<EffectiveBefore6> for Effective {
    fn from(old: EffectiveBefore6) -> Self {
        Self {
            cpu_isolation: old.cpu_isolation,
            gpu_exclusivity: old.gpu_exclusivity,
            transport: old.transport,
            rotate_on_renew: old.rotate_on_renew,
            read_only: old.read_only,
            mutual_auth: old.mutual_auth,
            ..Self::default()
        }
    }
}

/// An [`Effective`] of version 6.
#[derive(Deserialize)]
pub(crate) struct Effective6 {
    before: EffectiveBefore6,
    cpu_execution_mode: Option<CpuExecutionMode>,
    cpu_execution_width: Option<u16>,
    cpu_partition: Option<CpuPartition>,
    net_rate: Option<Enforcement>,
}

impl From<Effective6> for Effective {
    fn from(old: Effective6) -> Self {
        Self {
            cpu_execution_mode: old.cpu_execution_mode,
            cpu_execution_width: old.cpu_execution_width,
            cpu_partition: old.cpu_partition,
            net_rate: old.net_rate,
            ..old.before.into()
        }
    }
}

/// [`LeaseTerms`] of version 6. No node leased GPUs.
#[derive(Deserialize)]
pub(crate) enum Terms6 {
    Mem(MemTerms),
    Block(BlockTerms),
    Cpu(CpuTerms),
    Net(NetTerms),
    Gpu(Option<GpuExclusivityClass>),
    Other(ResourceType),
}

impl From<Terms6> for LeaseTerms {
    fn from(old: Terms6) -> Self {
        match old {
            Terms6::Mem(terms) => terms.into(),
            Terms6::Block(terms) => terms.into(),
            Terms6::Cpu(terms) => terms.into(),
            Terms6::Net(terms) => terms.into(),
            Terms6::Gpu(exclusivity) => gpu_terms(exclusivity).into(),
            Terms6::Other(kind) => Self::Other(kind),
        }
    }
}

fn gpu_terms(exclusivity: Option<GpuExclusivityClass>) -> GpuTerms {
    GpuTerms {
        exclusivity,
        ..GpuTerms::default()
    }
}

/// [`LeaseTerms`] before version 6. No node leased CPU cores or network functions.
#[derive(Deserialize)]
pub(crate) enum TermsBefore6 {
    Mem(MemTerms),
    Block(BlockTerms),
    Cpu(Option<CpuIsolationClass>),
    Net,
    Gpu(Option<GpuExclusivityClass>),
    Other(ResourceType),
}

impl From<TermsBefore6> for LeaseTerms {
    fn from(old: TermsBefore6) -> Self {
        match old {
            TermsBefore6::Mem(terms) => terms.into(),
            TermsBefore6::Block(terms) => terms.into(),
            TermsBefore6::Cpu(isolation) => {
                let others = CpuTerms::default();
                CpuTerms {
                    isolation,
                    ..others
                }
                .into()
            }
            TermsBefore6::Net => NetTerms::default().into(),
            TermsBefore6::Gpu(exclusivity) => gpu_terms(exclusivity).into(),
            TermsBefore6::Other(kind) => Self::Other(kind),
        }
    }
}

impl<Part, End, Classes, Terms, Intent> From<LeaseBefore7<Part, End, Classes, Terms, Intent>>
    for LeaseRecord
where
    Part: Into<Placement>,
    End: Into<Option<Box<LeaseEnd>>>,
    Classes: Into<Effective>,
    Terms: Into<LeaseTerms>,
    Intent: Into<Option<Box<LeaseIntent>>>,
{
    fn from(old: LeaseBefore7<Part, End, Classes, Terms, Intent>) -> Self {
        Self {
            lease_id: old.lease_id,
            tenant: old.tenant.into(),
            resource_id: old.resource_id,
            resource_type: old.resource_type,
            capacity: old.capacity,
            placement: old.part.map(Into::into),
            generation: old.generation,
            granted_at_unix_ms: old.granted_at_unix_ms,
            expires_at_unix_ms: old.expires_at_unix_ms,
            effective: old.effective.into(),
            term_secs: old.term_secs,
            grace_secs: old.grace_secs,
            deadline: old.deadline,
            ended: old.ended,
            end: old.end.into(),
            cannot_go_on: old.cannot_go_on,
            fenced_by_release: old.fenced_by_release,
            terms: old.terms.map(|terms| Box::new((*terms).into())),
            intent: old.intent.into(),
        }
    }
}

/// A record as bytes.
pub(crate) fn encode(record: &impl Serialize) -> postcard::Result<Vec<u8>> {
    postcard::to_extend(record, vec![RECORDS_VERSION])
}

/// Decodes a whole record of this version or of the four before.
pub(crate) fn decode<T: Record>(bytes: &[u8]) -> anyhow::Result<T> {
    let Some((&version, record)) = bytes.split_first() else {
        bail!("the journal holds an empty record; {ADVICE}");
    };
    match version {
        RECORDS_VERSION => read(record),
        VERSION_6 => read::<T::Version6>(record).map(Into::into),
        VERSION_5 => read::<T::Version5>(record).map(Into::into),
        VERSION_4 => read::<T::Version4>(record).map(Into::into),
        VERSION_3 => read::<T::Version3>(record).map(Into::into),
        _ => bail!(
            "the journal holds a record of version {version}, not {VERSION_3} to {RECORDS_VERSION}; {ADVICE}"
        ),
    }
}

const ADVICE: &str = "start the version that wrote it, or move the journal away to start anew";

fn read<T: DeserializeOwned>(record: &[u8]) -> anyhow::Result<T> {
    let read = postcard::take_from_bytes(record);
    match read.context("the journal holds a damaged record; move it away to start anew")? {
        (record, []) => Ok(record),
        _ => bail!("the journal holds a record with something behind it; {ADVICE}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, time::Duration};

    use fabricbios_lease::{
        AllocationMode, Asked, Durability, Effect, FenceScope, LeaseTable, Now, Offer, Order,
        Policy, Report, State, StepError, Ticket,
    };
    use fabricbios_wire::{Affinity, Reply, Request, Role};

    use super::*;
    use crate::{
        journal::{self, Journal, Key, Recovered},
        service,
    };

    fn fence() -> FenceRecord {
        FenceRecord {
            resource_id: ResourceId(1),
            resource_type: ResourceType::Mem,
            lease_id: LeaseId(2),
            since_unix_ms: 3,
            reason: StepError::new("dealloc_mw", "EIO"),
            by_release: false,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(&fence()).unwrap();
        assert_eq!(decode::<FenceRecord>(&bytes).unwrap(), fence());
    }

    #[test]
    fn terms_and_intent_of_a_lease_are_read_as_they_were_written() {
        let mut lease = leases(&recovered(VERSION_5)).remove(0);
        let terms = CpuTerms {
            isolation: Some(CpuIsolationClass::WholeCore),
            execution_width: Some(4),
            ..CpuTerms::default()
        };
        lease.terms = Some(Box::new(terms.into()));
        let intent = LeaseIntent {
            affinities: vec![Affinity {
                category: 3,
                strength: 2,
                target_type: 4,
                target: b"rack 7".to_vec(),
            }],
            ..LeaseIntent::default()
        };
        lease.intent = Some(Box::new(intent));
        lease.effective.cpu_execution_width = Some(4);
        let bytes = encode(&lease).unwrap();
        assert_eq!(decode::<LeaseRecord>(&bytes).unwrap(), lease);
    }

    #[test]
    fn of_a_step_that_failed_a_record_has_the_name_with_its_path_and_the_detail() {
        let reason = StepError::new("bind", "EIO").with_errno(5).over("UDP");
        let bytes = encode(&FenceRecord { reason, ..fence() }).unwrap();
        let shape = ("UDP transport: bind", "EIO", false);
        assert!(bytes.ends_with(&postcard::to_allocvec(&shape).unwrap()));
        let read: FenceRecord = decode(&bytes).unwrap();
        assert_eq!(read.reason.to_string(), "UDP transport: bind: EIO");
    }

    #[test]
    fn other_versions_and_damage_are_told_and_not_guessed_at() {
        let good = encode(&fence()).unwrap();
        let mut older = good.clone();
        older[0] = 2;
        let longer = [good.as_slice(), &[0]].concat();
        let shorter = &good[..good.len() - 1];
        for (bytes, word) in [
            (older.as_slice(), "version 2"),
            (&longer, "behind"),
            (shorter, "damaged"),
            (&[], "empty"),
        ] {
            let error = decode::<FenceRecord>(bytes).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// Written by a daemon of that version that was killed, with leases over UDP: of memory one in use, one
    /// freed and one expired; of files of a directory two in use, the first read-only, and one revoked.
    fn recovered(version: u8) -> Recovered {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let fixture = format!("{folder}/journal-of-records-{version}.redb.gz");
        let unpacked = Command::new("gzip")
            .args(["-dc", &fixture])
            .output()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(journal::FILE);
        fs::write(&path, unpacked.stdout).unwrap();
        let (_journal, recovered) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let versioned = |key: &Key| matches!(key, Key::Lease(_) | Key::Pool(_));
        let mut records = recovered.records.iter().filter(|(key, _)| versioned(key));
        assert!(records.all(|(_, bytes)| bytes[0] == version));
        recovered
    }

    fn leases(recovered: &Recovered) -> Vec<LeaseRecord> {
        let records = recovered.records.iter();
        let records = records.filter(|(key, _)| matches!(key, Key::Lease(_)));
        let mut leases: Vec<LeaseRecord> =
            records.map(|(_, bytes)| decode(bytes).unwrap()).collect();
        leases.sort_by_key(|lease| lease.granted_at_unix_ms);
        leases
    }

    #[test]
    fn journals_of_versions_before_are_read() {
        let (mem, block) = (ResourceType::Mem, ResourceType::Block);
        for version in [VERSION_3, VERSION_4, VERSION_5, VERSION_6] {
            let leases = leases(&recovered(version));
            assert!(
                leases
                    .iter()
                    .all(|it| it.effective.transport == Some(Transport::Udp))
            );
            let told: Vec<_> = { leases.iter() }
                .map(|it| (it.resource_type, it.capacity, it.ended))
                .collect();
            let expected = [
                (mem, 65_536, None),
                (block, 65_536, None),
                (block, 131_072, None),
                (mem, 4096, Some(LeasePhase::Freed)),
                (mem, 4096, Some(LeasePhase::Expired)),
                (block, 4096, Some(LeasePhase::Revoked)),
            ];
            assert_eq!(told, expected);
            let with_end = |it: &LeaseRecord| it.end.is_some();
            let ends = if version == VERSION_3 { 0 } else { 3 };
            assert_eq!(leases.iter().filter(|it| with_end(it)).count(), ends);
            let read_only = leases[1].terms.as_ref().and_then(|terms| terms.block());
            assert!(read_only.is_some_and(|terms| terms.read_only));
        }
    }

    fn offer(of: &LeaseRecord, durability: Durability, allocation_mode: AllocationMode) -> Offer {
        Offer {
            resource_id: of.resource_id,
            capacity: 1 << 20,
            align: 4096,
            transports: vec![Transport::Udp],
            durability,
            fence_scope: FenceScope::Part,
            cut_within: None,
            allocation_mode,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        }
    }

    /// The table and its orders when the journal is restored so long before the end of the terms.
    fn taken_up(version: u8, before: Duration, boot_id: Option<&str>) -> (LeaseTable, Vec<Order>) {
        let recovered = recovered(version);
        let leases = leases(&recovered);
        let mut table = LeaseTable::new(Policy::default());
        let memory = offer(&leases[0], Durability::Process, AllocationMode::Stretches);
        table.offer(ResourceType::Mem, memory);
        let files = offer(&leases[1], Durability::Machine, AllocationMode::Amounts);
        table.offer(ResourceType::Block, files);
        let now = Now {
            boot: BootTime(leases[0].deadline.0 - u64::try_from(before.as_nanos()).unwrap()),
            unix_ms: leases[0].expires_at_unix_ms,
        };
        let last = recovered.last_boot_id.clone().unwrap();
        let boot_id = boot_id.unwrap_or(&last);
        service::restore(&mut table, now, boot_id, &recovered, &|_| true).unwrap();
        let mut orders = Vec::new();
        while let Some(effect) = table.poll_effect() {
            let Effect::Order { order, .. } = effect else {
                continue;
            };
            if let Order::Extend(binding_id, deadline) = order {
                let agreed = Report::Extended(binding_id, deadline, Ok(()));
                table.on_report(now, now.boot, agreed);
            }
            orders.push(order);
        }
        for (lease, phase) in leases[3..].iter().map(|it| (it.lease_id, it.ended)) {
            let asked = Asked {
                ticket: Ticket(1),
                tenant: "operator".into(),
                role: Role::Operator,
                fresh_id: LeaseId(1),
                request: Request::LeaseQuery(lease),
            };
            table.on_request(now, &asked);
            let answer = table.poll_effect();
            let Some(Effect::Answer {
                answer: Ok(Reply::Lease(info)),
                ..
            }) = answer
            else {
                panic!("{answer:?}")
            };
            assert_eq!(Some(info.phase), phase);
        }
        (table, orders)
    }

    #[test]
    fn leases_of_versions_before_go_on_where_they_were() {
        for version in [VERSION_3, VERSION_4, VERSION_5] {
            let (_, orders) = taken_up(version, Duration::from_secs(300), None);
            let mut binds: Vec<_> = { orders.into_iter() }
                .filter_map(|order| match order {
                    Order::Bind(bind) => Some(bind),
                    Order::Extend(..) => None,
                    other => panic!("{other:?}"),
                })
                .map(|bind| {
                    let read_only = bind.terms.block().map(|terms| terms.read_only);
                    (read_only, bind.placement, bind.adopts)
                })
                .collect();
            binds.sort_by_key(|(read_only, ..)| *read_only);
            let bytes = Extent {
                offset: 0,
                length: 65_536,
            };
            let expected = [
                (None, Placement::Stretch(bytes), false),
                (Some(false), Placement::Amount(131_072), true),
                (Some(true), Placement::Amount(65_536), true),
            ];
            assert_eq!(binds, expected);
        }
    }

    #[test]
    fn leases_of_versions_before_end_when_they_are_over_or_the_machine_was_rebooted() {
        let minute = Duration::from_secs(60);
        for version in [VERSION_3, VERSION_4, VERSION_5] {
            let (table, orders) = taken_up(version, minute, Some("another boot"));
            let cut = |order: &Order| matches!(order, Order::Cut(..));
            assert!(orders.len() == 2 && orders.iter().all(cut), "{orders:?}");
            let states = table.census();
            assert_eq!(
                states.into_iter().collect::<Vec<_>>(),
                [(State::Cutting, 2)]
            );
        }
    }
}
