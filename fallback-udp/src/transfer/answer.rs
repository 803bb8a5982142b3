//! What an answer means for a transfer.

use core::time::Duration;

use fabricbios_wire::{DataFrame, DataStatus, HelloReply};

use super::{Failure, Transfer, work::Work};

const OK: u8 = DataStatus::Ok as u8;
const NO_LEASE: u8 = DataStatus::NoLease as u8;
const RANGE: u8 = DataStatus::Range as u8;
const REPLAY: u8 = DataStatus::Replay as u8;
const FENCED: u8 = DataStatus::Fenced as u8;
const TOO_OLD: u8 = DataStatus::TooOld as u8;
const BUSY: u8 = DataStatus::Busy as u8;

impl Transfer<'_> {
    /// A datagram from the server's address, whatever it is.
    pub fn on_datagram(&mut self, datagram: &[u8], now: Duration) {
        if self.outcome.is_some() {
            return;
        }
        let Ok(frame) = DataFrame::parse(datagram) else {
            return;
        };
        if let Some(at) = self.requester.requests.find(&frame.header) {
            if self.counts(&frame, now) {
                self.on_answer(at, &frame, now);
            }
        } else if let Some(length) = self.hello_length(&frame)
            && self.counts(&frame, now)
        {
            self.on_hello(length, &frame, now);
        }
    }

    /// The length of the HELLO that it answers.
    fn hello_length(&self, frame: &DataFrame<'_>) -> Option<usize> {
        let hello = self.requester.hello.as_ref()?;
        hello.find(&frame.header)
    }

    fn counts(&mut self, frame: &DataFrame<'_>, now: Duration) -> bool {
        let counts = self.requester.is_authentic(frame, now);
        self.requester.statistics.answered += u64::from(counts);
        counts
    }

    fn on_answer(&mut self, at: usize, frame: &DataFrame<'_>, now: Duration) {
        let requester = &mut *self.requester;
        match frame.header.status {
            OK => self.on_done(at, frame.payload, now),
            BUSY => {
                requester.refusal = Some(BUSY);
                requester.on_busy(at, now);
            }
            // REPLAY is a defect or a session that is shared; another session helps against the latter.
            status @ (TOO_OLD | REPLAY) => {
                requester.refusal = Some(status);
                requester.session_lost(&frame.header, now);
            }
            status => self.refused(status),
        }
    }

    fn on_done(&mut self, at: usize, payload: &[u8], now: Duration) {
        let requester = &mut *self.requester;
        let Some(request) = requester.requests.get_mut(at) else {
            return;
        };
        if !self.work.take(&request.range, payload) {
            return;
        }
        let sample = (request.tries == 0).then(|| now.saturating_sub(request.sent));
        self.confirmed += request.range.len() as u64;
        requester.on_done(at, sample);
        requester.progressed(now);
    }

    fn on_hello(&mut self, length: usize, frame: &DataFrame<'_>, now: Duration) {
        let requester = &mut *self.requester;
        match frame.header.status {
            OK => self.on_opened(length, frame.payload, now),
            BUSY => {
                requester.refusal = Some(BUSY);
                if let Some(hello) = &mut requester.hello {
                    hello.busy(now);
                }
            }
            status @ (TOO_OLD | REPLAY) => {
                requester.refusal = Some(status);
                requester.reopen(now);
            }
            status => self.refused(status),
        }
    }

    /// The reply is as long as the request, which proves the length both ways.
    fn on_opened(&mut self, length: usize, payload: &[u8], now: Duration) {
        if payload.len() + fabricbios_wire::DATA_OVERHEAD != length {
            return;
        }
        match HelloReply::read(payload).filter(makes_sense) {
            Some(told) => {
                self.requester.sample_hello(now);
                self.requester.opened(told, length);
            }
            None => self.end(Failure::Nonsense),
        }
        if matches!(self.work, Work::Hello) {
            self.requester.progressed(now);
        }
    }

    fn refused(&mut self, status: u8) {
        let told = self.requester.session_told();
        let resource_len = told.map_or(0, |told| told.resource_len);
        self.end(match status {
            NO_LEASE => Failure::NoLease,
            FENCED => Failure::Fenced,
            RANGE => Failure::OutOfRange { resource_len },
            status => Failure::Refused { status },
        });
    }
}

/// Memory, of which something can be read and written.
fn makes_sense(told: &HelloReply) -> bool {
    told.unit == 1 && told.max_read > 0 && told.max_write > 0
}
