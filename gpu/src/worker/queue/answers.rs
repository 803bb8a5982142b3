//! Answers that are held back: while a client's next operation has arrived already, nobody can be waiting for them.

use fabricbios_wire::{GpuReply, Header, Refusal, encode_gpu_answer};

/// Most answers that are held back.
const HELD_MAX: usize = 128;

/// The answers of operations that were carried out, in their order.
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<Held>);

#[derive(Debug)]
struct Held {
    to: Header,
    answer: Result<GpuReply, Refusal>,
    /// The operation is a copy that the device may not have done yet. Its answer must not be sent before.
    is_copying: bool,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether no more may be held back.
    pub(super) fn are_full(&self) -> bool {
        self.0.len() >= HELD_MAX
    }

    pub(super) fn hold(&mut self, to: Header, answer: Result<GpuReply, Refusal>) {
        self.0.push(Held {
            to,
            answer,
            is_copying: false,
        });
    }

    /// Holds the answer of a copy that was queued.
    pub(super) fn hold_copy(&mut self, to: Header, answer: Result<GpuReply, Refusal>) {
        self.hold(to, answer);
        if let Some(held) = self.0.last_mut() {
            held.is_copying = held.answer.is_ok();
        }
    }

    /// Whether an answer waits for the device.
    pub(super) fn are_copying(&self) -> bool {
        self.0.iter().any(|held| held.is_copying)
    }

    /// The device has done all copies, or never will.
    pub(super) fn copied(&mut self, done: &Result<GpuReply, Refusal>) {
        for held in self.0.iter_mut().filter(|held| held.is_copying) {
            held.is_copying = false;
            if let Err(refusal) = done {
                held.answer = Err(refusal.clone());
            }
        }
    }

    /// The bytes of all answers, which are held no longer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let encode = |held: Held| encode_gpu_answer(&held.to, &held.answer);
        self.0.drain(..).flat_map(encode).collect()
    }
}
