//! Signs what a member tells of itself, and answers who asks.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_fabric::{Fabric, FileProblem};
use fabricbios_wire::{
    Announced, Discovery, Epoch, FlatEntry, ResourceType, Solicit, Told, decode_discovery,
    discovery_message, sealed_discovery,
};

use crate::{HOP_LIMIT, Moment, is_wanted, pace::Pace};

/// Answers to SOLICIT, each of which is a signature: one each 20 ms, after 50 at once.
const ANSWERS: (Duration, u32) = (Duration::from_millis(20), 50);

/// A member that announces itself.
#[derive(Debug)]
pub struct Speaker {
    fabric: Arc<Fabric>,
    epoch: Epoch,
    sequence: u64,
    answers: Pace,
}

/// Why a member cannot announce itself.
#[derive(Debug, thiserror::Error)]
pub enum CannotSpeak {
    /// The identity does not sign.
    #[error(
        "sign an ANNOUNCE: {0}; have a key of ECDSA with P-256 certified (`fabricctl fabric sign`)"
    )]
    Key(#[from] FileProblem),
    /// The certificate is too long.
    #[error(
        "the certificate has {0} bytes, and with one entry an ANNOUNCE would have more than 1,232: have it certified with \
         fewer labels"
    )]
    TooLong(usize),
}

/// Why a datagram gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It has come through a router.
    Far,
    /// It is no SOLICIT.
    NoSolicit,
    /// It asks for members of another fabric.
    OtherFabric,
    /// It asks for something that this member does not offer.
    OtherType,
    /// It is shorter than its answer.
    Short,
    /// There were too many.
    TooMany,
    /// The answer cannot be signed.
    Unsigned,
}

impl Speaker {
    /// A member that starts now.
    #[must_use]
    pub fn new(fabric: Arc<Fabric>, now: Moment) -> Self {
        let (every, burst) = ANSWERS;
        Self {
            fabric,
            epoch: Epoch(now.unix_ms()),
            sequence: 0,
            answers: Pace::new(every, burst),
        }
    }

    /// An ANNOUNCE. Of the entries as many as fit, one of each type first; the flag *more* says that there are others.
    ///
    /// # Errors
    /// If the identity cannot sign it.
    pub fn announce(&mut self, offer: &Announced, now: Moment) -> Result<Vec<u8>, CannotSpeak> {
        self.signed(0, Some(offer), now)
    }

    /// A WITHDRAW.
    ///
    /// # Errors
    /// If the identity cannot sign it.
    pub fn withdraw(&mut self, now: Moment) -> Result<Vec<u8>, CannotSpeak> {
        self.signed(0, None, now)
    }

    /// The ANNOUNCE that answers this datagram.
    ///
    /// # Errors
    /// If it gets no answer.
    pub fn answer(
        &mut self,
        datagram: &[u8],
        hop_limit: u8,
        offer: &Announced,
        now: Moment,
    ) -> Result<Vec<u8>, Unanswered> {
        let asked = self.asked(datagram, hop_limit, offer, now.monotonic)?;
        let answer = self.signed(asked.nonce, Some(offer), now);
        let answer = answer.map_err(|_unsigned| Unanswered::Unsigned)?;
        match answer.len() <= datagram.len() {
            true => Ok(answer),
            false => Err(Unanswered::Short),
        }
    }

    fn asked(
        &mut self,
        datagram: &[u8],
        hop_limit: u8,
        offer: &Announced,
        now: Instant,
    ) -> Result<Solicit, Unanswered> {
        if hop_limit != HOP_LIMIT {
            return Err(Unanswered::Far);
        }
        let Ok(Discovery::Solicit(asked)) = decode_discovery(datagram) else {
            return Err(Unanswered::NoSolicit);
        };
        if asked.fabric != self.fabric.id().0 {
            return Err(Unanswered::OtherFabric);
        }
        if !is_wanted(asked.resource_type, &offer.entries) {
            return Err(Unanswered::OtherType);
        }
        match self.answers.take(now) {
            true => Ok(asked),
            false => Err(Unanswered::TooMany),
        }
    }

    fn signed(
        &mut self,
        nonce: u64,
        offer: Option<&Announced>,
        now: Moment,
    ) -> Result<Vec<u8>, CannotSpeak> {
        let certificate = &self.fabric.present()?.certificate;
        let length = certificate.len();
        self.sequence += 1;
        let told = Told {
            fabric: self.fabric.id().0,
            nonce,
            epoch: self.epoch,
            sequence: self.sequence,
            sent_unix_ms: now.unix_ms(),
            offer: offer.map(|it| fitted(it, length)),
        };
        let unsigned = told.unsigned(certificate);
        let unsigned = unsigned.ok_or(CannotSpeak::TooLong(length))?;
        let signature = self.fabric.sign(&discovery_message(&unsigned))?;
        sealed_discovery(&unsigned, &signature).ok_or(CannotSpeak::TooLong(length))
    }
}

/// The offer with the entries that fit beside a certificate of this length.
fn fitted(offer: &Announced, certificate: usize) -> Announced {
    // With not even one the datagram is refused as too long.
    let most = Announced::entries_beside(certificate).max(1);
    Announced {
        has_more: offer.has_more || offer.entries.len() > most,
        entries: of_each_type_first(&offer.entries, most),
        ..offer.clone()
    }
}

/// So many of the entries, in their order: the first of each type goes before the second ones, and so on; those of which
/// something is available count first.
pub(crate) fn of_each_type_first(entries: &[FlatEntry], most: usize) -> Vec<FlatEntry> {
    let mut all: Vec<(usize, &FlatEntry)> = entries.iter().enumerate().collect();
    all.sort_by_key(|(_, it)| it.available == 0);
    let mut counts = BTreeMap::<ResourceType, usize>::new();
    let counted = all.into_iter().map(|(at, it)| {
        let count = counts.entry(it.resource_type).or_default();
        *count += 1;
        (*count, at, *it)
    });
    let mut chosen: Vec<(usize, usize, FlatEntry)> = counted.collect();
    chosen.sort_by_key(|(count, at, _)| (*count, *at));
    chosen.truncate(most);
    chosen.sort_by_key(|(_, at, _)| *at);
    chosen.into_iter().map(|(.., it)| it).collect()
}
