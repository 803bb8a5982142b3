//! What a receiver believes of an ANNOUNCE or WITHDRAW. The checks that cost little come first, and those that cost much are
//! counted: see section 3 of `docs/spec/discovery.md`.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::{Duration, Instant},
};

use fabricbios_fabric::{FileProblem, Verified, Verifier};
use fabricbios_wire::{
    Announced, Discovery, Epoch, FlatEntry, NodeId, ResourceType, Role, Signed, Solicit, Told,
    decode_discovery, discovery_message,
};
use sha2::{Digest, Sha256};

use crate::{CLOCKS_DIFFER, HOP_LIMIT, Moment, is_wanted, link::Arrived, pace::Pace};

/// Senders that a receiver remembers.
pub const KNOWN_MAX: usize = 64;
/// Addresses of one sender.
const ADDRESSES_MAX: usize = 4;
/// Certificates that are not known: one each 100 ms, after 20 at once. Each is two verifications.
const STRANGERS: (Duration, u32) = (Duration::from_millis(100), 20);
/// Datagrams of one known sender: one each 500 ms, after 4 at once. Each is one verification.
const OF_ONE: (Duration, u32) = (Duration::from_millis(500), 4);

/// Listens for members with resources of one type, or for nodes.
#[derive(Debug)]
pub struct Listener {
    verifier: Verifier,
    wanted: ResourceType,
    /// Of the last SOLICIT; 0: there was none.
    nonce: u64,
    known: HashMap<NodeId, Known>,
    strangers: Pace,
    only_answers: bool,
}

/// A sender of which a datagram was verified. It stays after its end, so that an old datagram does not bring it back.
#[derive(Debug)]
struct Known {
    member: Verified,
    /// SHA-256 of its certificate.
    certificate: [u8; 32],
    last: (Epoch, u64),
    /// The nonce of the last SOLICIT of ours that it has answered.
    answered: u64,
    entries: Vec<FlatEntry>,
    has_more: bool,
    /// Where it is, each until its ANNOUNCE is over; those that do not leave the link last.
    addresses: Vec<(SocketAddr, Instant)>,
    /// When the last one is over.
    until: Instant,
    pace: Pace,
}

/// A member that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// SHA-256 of its SubjectPublicKeyInfo. Whoever connects can insist on it.
    pub id: NodeId,
    /// Where to connect: hints. Those that do not leave the link come last.
    pub addresses: Vec<SocketAddr>,
    /// What it has, as it told last; of a scheduler one entry.
    pub entries: Vec<FlatEntry>,
    /// Whether it has more than these.
    pub has_more: bool,
}

impl Found {
    /// Where it serves HTTP, if it does and is a scheduler.
    #[must_use]
    pub fn http_port(&self) -> Option<u16> {
        let mut entries = self.entries.iter();
        let of_scheduler = entries.find(|it| it.resource_type == ResourceType::Scheduler)?;
        let port = u16::try_from(of_scheduler.capacity).ok();
        port.filter(|it| *it != 0)
    }
}

/// Whether a datagram has changed who is there, or where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A member is there, at another place, or with other resources.
    Came(NodeId),
    /// A member is still there.
    GoesOn(NodeId),
    /// A member has withdrawn.
    Went(NodeId),
}

/// Why a datagram is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It has come through a router.
    Far,
    /// It is no datagram of discovery.
    Malformed,
    /// It is a question.
    Solicit,
    /// It is of another fabric.
    OtherFabric,
    /// It is of a member without a resource of the wanted type.
    OtherType,
    /// It is more than an hour old, or of the future.
    Dated,
    /// It was taken already, or a later one was.
    Replayed,
    /// Too many must be verified.
    TooMany,
    /// Its certificate is not accepted: the reason.
    Certificate(String),
    /// The sender's role does not have such entries.
    Role(Role),
    /// The signature is wrong.
    Signature,
    /// So many senders are known that are valid.
    Full,
    /// A WITHDRAW of a sender that is not known.
    Unknown,
}

impl From<FileProblem> for Ignored {
    fn from(why: FileProblem) -> Self {
        Self::Certificate(why.to_string())
    }
}

impl Listener {
    /// Listens for members of this fabric with resources of this type; [`Solicit::NODES`]: for its nodes.
    #[must_use]
    pub fn new(verifier: Verifier, wanted: ResourceType) -> Self {
        let (every, burst) = STRANGERS;
        Self {
            verifier,
            wanted,
            nonce: 0,
            known: HashMap::new(),
            strangers: Pace::new(every, burst),
            only_answers: false,
        }
    }

    /// Takes answers to its last SOLICIT, and nothing else.
    #[must_use]
    pub fn only_answers(self) -> Self {
        Self {
            only_answers: true,
            ..self
        }
    }

    /// A SOLICIT with this random number, which is not 0. Only answers to the last one count as answers.
    pub fn solicit(&mut self, nonce: u64) -> Vec<u8> {
        self.nonce = nonce;
        let solicit = Solicit {
            fabric: self.verifier.fabric().0,
            nonce,
            resource_type: self.wanted,
        };
        solicit.encode()
    }

    /// The members that are there now.
    #[must_use]
    pub fn found(&self, now: Instant) -> Vec<Found> {
        let mut all: Vec<Found> = self.known.values().filter_map(|it| it.found(now)).collect();
        all.sort_by_key(|it| it.id);
        all
    }

    /// Takes a datagram.
    ///
    /// # Errors
    /// If it is ignored.
    pub fn hear(&mut self, arrived: &Arrived, now: Moment) -> Result<News, Ignored> {
        if arrived.hop_limit != HOP_LIMIT {
            return Err(Ignored::Far);
        }
        let signed = match decode_discovery(&arrived.bytes) {
            Ok(Discovery::Signed(signed)) => signed,
            Ok(Discovery::Solicit(_)) => return Err(Ignored::Solicit),
            Err(_) => return Err(Ignored::Malformed),
        };
        self.refuse_cheaply(&signed.told, now)?;
        if self.only_answers && signed.told.nonce != self.nonce {
            return Err(Ignored::Replayed);
        }
        let digest: [u8; 32] = Sha256::digest(signed.certificate).into();
        let (member, is_known) = self.member(&signed, digest, now)?;
        check_role(member.role, signed.told.offer.as_ref())?;
        if !member.has_signed(&discovery_message(signed.covered), signed.signature) {
            return Err(Ignored::Signature);
        }
        if !is_known {
            self.make_place(member.id, now.monotonic)?;
        }
        Ok(self.remember(member, digest, &signed.told, arrived.interface, now))
    }

    fn refuse_cheaply(&self, told: &Told, now: Moment) -> Result<(), Ignored> {
        if told.fabric != self.verifier.fabric().0 {
            return Err(Ignored::OtherFabric);
        }
        if let Some(offer) = &told.offer
            && !is_wanted(self.wanted, &offer.entries)
        {
            return Err(Ignored::OtherType);
        }
        let age = now.unix_ms().abs_diff(told.sent_unix_ms);
        match Duration::from_millis(age) > CLOCKS_DIFFER {
            true => Err(Ignored::Dated),
            false => Ok(()),
        }
    }

    /// The sender, whose certificate is verified; and whether it is known with it.
    fn member(
        &mut self,
        signed: &Signed<'_>,
        digest: [u8; 32],
        now: Moment,
    ) -> Result<(Verified, bool), Ignored> {
        let mut all = self.known.values_mut();
        if let Some(known) = all.find(|it| it.certificate == digest) {
            known.refuse_replayed(&signed.told, self.nonce)?;
            if known.member.not_after <= now.wall {
                return Err(Ignored::Certificate("it has expired".into()));
            }
            return match known.pace.take(now.monotonic) {
                true => Ok((known.member.clone(), true)),
                false => Err(Ignored::TooMany),
            };
        }
        if signed.told.offer.is_none() {
            return Err(Ignored::Unknown);
        }
        if !self.strangers.take(now.monotonic) {
            return Err(Ignored::TooMany);
        }
        let member = self.verifier.member(signed.certificate, now.wall)?;
        // It may be known with an earlier certificate of the same key.
        if let Some(known) = self.known.get(&member.id) {
            known.refuse_replayed(&signed.told, self.nonce)?;
        }
        Ok((member, false))
    }

    /// Makes a place for this member: one whose time is over makes way, the one that is over the longest first.
    fn make_place(&mut self, id: NodeId, now: Instant) -> Result<(), Ignored> {
        if self.known.len() < KNOWN_MAX || self.known.contains_key(&id) {
            return Ok(());
        }
        let over = self.known.iter().filter(|(_, it)| it.until <= now);
        let oldest = over.min_by_key(|(_, it)| it.until).map(|(id, _)| *id);
        let oldest = oldest.ok_or(Ignored::Full)?;
        self.known.remove(&oldest);
        Ok(())
    }

    fn remember(
        &mut self,
        member: Verified,
        certificate: [u8; 32],
        told: &Told,
        interface: u32,
        now: Moment,
    ) -> News {
        let id = member.id;
        let (every, burst) = OF_ONE;
        let mut known = self.known.remove(&id).unwrap_or_else(|| Known {
            member: member.clone(),
            certificate,
            last: (Epoch(0), 0),
            answered: 0,
            entries: Vec::new(),
            has_more: false,
            addresses: Vec::new(),
            until: now.monotonic,
            pace: Pace::new(every, burst),
        });
        let before = known.found(now.monotonic);
        (known.member, known.certificate) = (member, certificate);
        known.last = (told.epoch, told.sequence);
        if told.nonce != 0 && told.nonce == self.nonce {
            known.answered = told.nonce;
        }
        match &told.offer {
            Some(offer) => known.take(offer, interface, now.monotonic),
            None => known.withdraw(now.monotonic),
        }
        let after = known.found(now.monotonic);
        self.known.insert(id, known);
        match after {
            None => News::Went(id),
            now if now == before => News::GoesOn(id),
            Some(_) => News::Came(id),
        }
    }
}

impl Known {
    /// Whether the datagram is later than all before, or the first answer to the SOLICIT with this nonce: that one is of
    /// now, even if the sender's clock was set back when it started anew.
    fn refuse_replayed(&self, told: &Told, nonce: u64) -> Result<(), Ignored> {
        let is_later = (told.epoch, told.sequence) > self.last;
        let is_answer = nonce != 0 && told.nonce == nonce && self.answered != nonce;
        match is_later || is_answer {
            true => Ok(()),
            false => Err(Ignored::Replayed),
        }
    }

    fn take(&mut self, offer: &Announced, interface: u32, now: Instant) {
        let address = address(offer, interface);
        (self.entries, self.has_more) = (offer.entries.clone(), offer.has_more);
        self.addresses
            .retain(|(it, until)| *it != address && *until > now);
        while self.addresses.len() >= ADDRESSES_MAX {
            let first_over = { self.addresses.iter().enumerate() }.min_by_key(|(_, it)| it.1);
            let at = first_over.map_or(0, |(at, _)| at);
            self.addresses.swap_remove(at);
        }
        let until = now + Duration::from_secs(offer.lifetime_secs.into());
        self.addresses.push((address, until));
        let stays_on_link =
            |it: &SocketAddr| matches!(it, SocketAddr::V6(it) if it.scope_id() != 0);
        self.addresses
            .sort_by_key(|(it, _)| (stays_on_link(it), *it));
        self.until = { self.addresses.iter() }
            .map(|it| it.1)
            .max()
            .unwrap_or(now);
    }

    fn withdraw(&mut self, now: Instant) {
        self.addresses.clear();
        self.until = now;
    }

    fn found(&self, now: Instant) -> Option<Found> {
        let there = self.addresses.iter().filter(|(_, until)| *until > now);
        let addresses: Vec<SocketAddr> = there.map(|(it, _)| *it).collect();
        (!addresses.is_empty()).then_some(Found {
            id: self.member.id,
            addresses,
            entries: self.entries.clone(),
            has_more: self.has_more,
        })
    }
}

/// A scheduler announces schedulers only, that is itself; a node its resources, which are never schedulers. The verifier has
/// refused all other roles.
fn check_role(role: Role, offer: Option<&Announced>) -> Result<(), Ignored> {
    let is_of_scheduler = |it: &FlatEntry| it.resource_type == ResourceType::Scheduler;
    let suits = match offer {
        None => true,
        Some(Announced { entries, .. }) if role == Role::Scheduler => {
            !entries.is_empty() && entries.iter().all(is_of_scheduler)
        }
        Some(offer) => !offer.entries.iter().any(is_of_scheduler),
    };
    match suits {
        true => Ok(()),
        false => Err(Ignored::Role(role)),
    }
}

fn address(offer: &Announced, interface: u32) -> SocketAddr {
    let address = SocketAddr::from(offer.endpoint);
    match address.ip() {
        // One of the link on which it was heard.
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, address.port(), 0, interface).into()
        }
        _ => address,
    }
}
