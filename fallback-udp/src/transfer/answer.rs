//! Handles the replies of the server.

use core::time::Duration;

use fabricbios_wire::{DataFrame, DataOp, DataService, DataStatus, HelloReply, Part};

use super::{Failure, Requester, piece::Piece};

/// A reply that concerns the operation itself; all other replies are handled here.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// A request was done, which completes `bytes` bytes of its operation. The payload of a READ is as long as its
    /// range.
    Done {
        piece: Piece,
        bytes: usize,
        payload: &'a [u8],
    },
    /// A request was refused and will not be done; `None`: the HELLO.
    Refused {
        piece: Option<Piece>,
        failure: Failure,
    },
    /// A session was opened.
    Opened,
}

impl Requester {
    /// Handles a datagram from the server's address; its content is not trusted.
    pub(super) fn on_datagram<'a>(
        &mut self,
        datagram: &'a [u8],
        now: Duration,
    ) -> Option<Event<'a>> {
        let frame = DataFrame::parse(datagram).ok()?;
        if let Some(at) = self.requests.find(&frame.header) {
            return self
                .counts(&frame, now)
                .then(|| self.on_answer(at, &frame, now))?;
        }
        let length = self.hello.as_ref()?.find(&frame.header)?;
        self.counts(&frame, now)
            .then(|| self.on_hello(length, &frame, now))?
    }

    fn counts(&mut self, frame: &DataFrame<'_>, now: Duration) -> bool {
        let counts = self.is_authentic(frame, now);
        self.statistics.answered += u64::from(counts);
        counts
    }

    fn on_answer<'a>(
        &mut self,
        at: usize,
        frame: &DataFrame<'a>,
        now: Duration,
    ) -> Option<Event<'a>> {
        let status = frame.header.status;
        match DataStatus::from_byte(status) {
            Some(DataStatus::Ok) => return self.on_ok(at, frame.payload, now),
            Some(DataStatus::Busy) => {
                self.refusal = Some(status);
                self.on_busy(at, now);
            }
            // REPLAY: a defect, or two clients share the session. In the second case a new session helps.
            Some(DataStatus::TooOld | DataStatus::Replay) => {
                self.refusal = Some(status);
                self.session_lost(&frame.header, now);
            }
            _ => {
                let failure = self.failure(status);
                let piece = Some(self.on_answered(at, now)?);
                return Some(Event::Refused { piece, failure });
            }
        }
        None
    }

    fn on_ok<'a>(&mut self, at: usize, payload: &'a [u8], now: Duration) -> Option<Event<'a>> {
        let piece = &self.requests.get_mut(at)?.piece;
        let expected = match piece.op {
            DataOp::Read => piece.range.len(),
            _ => 0,
        };
        if payload.len() != expected {
            return None;
        }
        let piece = self.on_answered(at, now)?;
        self.progressed(now);
        let bytes = self.unsent.done(&piece);
        Some(Event::Done {
            piece,
            bytes,
            payload,
        })
    }

    fn on_hello<'a>(
        &mut self,
        length: usize,
        frame: &DataFrame<'a>,
        now: Duration,
    ) -> Option<Event<'a>> {
        let status = frame.header.status;
        match DataStatus::from_byte(status) {
            Some(DataStatus::Ok) => return self.on_opened(length, frame.payload, now),
            Some(DataStatus::Busy) => {
                self.refusal = Some(status);
                if let Some(hello) = &mut self.hello {
                    hello.busy(now);
                }
            }
            Some(DataStatus::TooOld | DataStatus::Replay) => {
                self.refusal = Some(status);
                self.reopen(now);
            }
            _ => {
                let failure = self.failure(status);
                return Some(Event::Refused {
                    piece: None,
                    failure,
                });
            }
        }
        None
    }

    /// Handles the reply to HELLO. The reply must be as long as the request, which proves the length in both
    /// directions.
    fn on_opened<'a>(&mut self, length: usize, payload: &[u8], now: Duration) -> Option<Event<'a>> {
        if payload.len() + fabricbios_wire::DATA_OVERHEAD != length {
            return None;
        }
        let parameters =
            HelloReply::read(payload).filter(|parameters| self.is_valid_for_service(parameters));
        let Some(parameters) = parameters else {
            let failure = Failure::Nonsense;
            return Some(Event::Refused {
                piece: None,
                failure,
            });
        };
        self.sample_hello(now);
        self.opened(parameters, length);
        Some(Event::Opened)
    }

    /// Whether a reply to HELLO is valid for the service. The unit must stay the same for all sessions.
    fn is_valid_for_service(&self, parameters: &HelloReply) -> bool {
        let most = parameters.max_read.min(parameters.max_write);
        let counts = match self.service {
            DataService::Memory => parameters.unit == 1 && most > 0,
            DataService::Block => {
                parameters.unit.is_power_of_two()
                    && (512..=4096).contains(&parameters.unit)
                    && most >= Part::BYTES_MIN
                    && parameters.window >= Part::COUNT_MAX
            }
        };
        counts && self.unit.is_none_or(|unit| unit == parameters.unit)
    }

    fn failure(&self, status: u8) -> Failure {
        let parameters = self.session_parameters();
        let resource_len = parameters.map_or(0, |parameters| parameters.resource_len);
        match DataStatus::from_byte(status) {
            Some(DataStatus::NoLease) => Failure::NoLease,
            Some(DataStatus::Fenced) => Failure::Fenced,
            Some(DataStatus::Range) => Failure::OutOfRange { resource_len },
            _ => Failure::Refused { status },
        }
    }
}
