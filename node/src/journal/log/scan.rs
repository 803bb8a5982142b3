//! Reads the log of commits, and judges what stands behind its last whole frame.
//!
//! The file has a head of one sector and two halves. A half is written from its beginning on, over sectors of frames
//! that the journal's file has by then. A frame follows the one before it in the same half, or begins the other half.

use super::sector::{Chain, Found, SECTOR, Sector, chain, look};
use crate::journal::Value;

/// A commit of the log: its number, and its payload.
pub(in crate::journal) type Frame = (u64, Value);

/// The bytes of a log, of which the head is whole.
#[derive(Debug)]
pub(super) struct Image<'a> {
    log: u64,
    halves: [&'a [[u8; SECTOR]]; 2],
}

/// A place in a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    half: usize,
    at: usize,
}

impl<'a> Image<'a> {
    /// The log in these bytes of a file. `Err`: why it is none.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (sectors, rest) = bytes.as_chunks::<SECTOR>();
        let (head, body) = sectors.split_first().ok_or("is empty")?;
        let log = head.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        let Found::Sector(Sector {
            frame: 0, payload, ..
        }) = look(head, log)
        else {
            return Err("has a damaged head");
        };
        let half = payload.first_chunk().map(|it| u64::from_le_bytes(*it));
        let (first, second) = body.split_at(body.len() / 2);
        if first.len() != second.len() || !rest.is_empty() || half != Some(first.len() as u64) {
            return Err("has another length than its head says");
        }
        let halves = [first, second];
        Ok(Self { log, halves })
    }

    /// The identity of the log.
    pub(super) fn identity(&self) -> u64 {
        self.log
    }

    /// The number of the newest whole frame; 0: there is none.
    pub(super) fn newest(&self) -> u64 {
        let frames = self.places().filter_map(|place| {
            let number = self.sector(place)?.frame;
            self.whole(place, number, None).map(|_| number)
        });
        frames.max().unwrap_or(0)
    }

    /// The whole frames behind the commit `after`, which the journal's file has. `acknowledged`: the newest commit that
    /// was reported, if this is known; it decides whether the rest was. `Err`: a commit that was reported may be lost,
    /// and why.
    pub(super) fn frames(
        &self,
        after: u64,
        acknowledged: Option<u64>,
    ) -> Result<Vec<Frame>, String> {
        let mut frames = Vec::new();
        let mut taken = [0, 1].map(|half| vec![false; self.halves[half].len()]);
        // A half begins with the frame behind `after`, or with the mark of `after`.
        let mut next = [0, 1].map(|half| {
            let begin = Place { half, at: 0 };
            let mark = self.whole(begin, after, None);
            Place {
                half,
                at: mark.map_or(0, |(_, sectors)| sectors.len()),
            }
        });
        let mut before = None;
        let mut last = after;
        while let Some((place, sectors)) = last
            .checked_add(1)
            .and_then(|number| next.iter().find_map(|it| self.whole(*it, number, before)))
        {
            last += 1;
            taken[place.half][place.at..][..sectors.len()].fill(true);
            before = Some(chain(sectors.iter().copied()));
            let (half, at) = (place.half, place.at + sectors.len());
            next = [
                Place { half, at },
                Place {
                    half: 1 - half,
                    at: 0,
                },
            ];
            let parts: Vec<_> = sectors.iter().map(|it| it.payload).collect();
            frames.push((last, Value::new(parts.concat())));
        }
        match acknowledged {
            Some(number) if number > last => Err(format!(
                "commit {number} was reported, and only those up to {last} are whole"
            )),
            // Nobody knows of what follows.
            Some(_) => Ok(frames),
            None => {
                let free = self.places().filter(|it| !taken[it.half][it.at]);
                self.judge(free, after, last, before, next)?;
                Ok(frames)
            }
        }
    }

    /// Judges the places that no whole frame behind `after` has. What an unfinished write of the frame behind `last`
    /// leaves there is zeros, sectors of frames up to `after`, and sectors of this one frame. Anything else is damage.
    fn judge(
        &self,
        free: impl Iterator<Item = Place>,
        after: u64,
        last: u64,
        before: Option<Chain>,
        next: [Place; 2],
    ) -> Result<(), String> {
        let mut torn = None;
        for place in free {
            let at = self.offset(place);
            match look(self.bytes(place), self.log) {
                Found::Zeros => {}
                Found::Sector(it) if it.frame <= after => {}
                Found::Sector(it) if Some(it.frame) == last.checked_add(1) => {
                    let begins = Place {
                        at: place.at.wrapping_sub(it.index),
                        ..place
                    };
                    let of = (begins, it.count, it.before);
                    let follows = next.contains(&begins) && before.is_none_or(|b| b == it.before);
                    if !follows || *torn.get_or_insert(of) != of {
                        return Err(format!(
                            "byte {at} has a part of commit {} that does not follow commit {last}",
                            it.frame
                        ));
                    }
                }
                Found::Sector(it) => {
                    return Err(format!(
                        "byte {at} has a part of commit {}, and behind commit {last} none is whole",
                        it.frame
                    ));
                }
                Found::Damaged => {
                    return Err(format!(
                        "the 512 bytes at {at} are no part of it, and behind commit {last} none is whole"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The sectors of the frame with this number, if it is whole at this place.
    fn whole(
        &self,
        place: Place,
        number: u64,
        before: Option<Chain>,
    ) -> Option<(Place, Vec<Sector<'a>>)> {
        let first = self.sector(place)?;
        if before.is_some_and(|before| before != first.before) {
            return None;
        }
        let all = self.halves[place.half]
            .get(place.at..)?
            .get(..first.count)?;
        let sectors = all.iter().enumerate().map(|(index, bytes)| {
            let Found::Sector(it) = look(bytes, self.log) else {
                return None;
            };
            let fits = (it.frame, it.index, it.count) == (number, index, first.count);
            (fits && it.before == first.before).then_some(it)
        });
        Some((place, sectors.collect::<Option<Vec<_>>>()?))
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let of = |half: usize| (0..self.halves[half].len()).map(move |at| Place { half, at });
        of(0).chain(of(1))
    }

    fn sector(&self, place: Place) -> Option<Sector<'a>> {
        match look(self.halves[place.half].get(place.at)?, self.log) {
            Found::Sector(it) => Some(it),
            Found::Zeros | Found::Damaged => None,
        }
    }

    fn bytes(&self, place: Place) -> &'a [u8; SECTOR] {
        &self.halves[place.half][place.at]
    }

    /// Where the place is in the file.
    fn offset(&self, place: Place) -> usize {
        (1 + place.half * self.halves[0].len() + place.at) * SECTOR
    }
}
