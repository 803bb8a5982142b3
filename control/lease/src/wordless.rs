//! Refusals of which nobody reads the words.

use alloc::string::String;

use fabricbios_wire::{LeaseError, Refusal, RefusalClass};

/// A refusal, with or without words. Most of the time that a refusal takes goes into its words, and of ten thousand
/// nodes that refuse, the words of one are read.
pub trait Refuses: From<Refusal> {
    /// The refusal of this error and class. Words that nobody reads are not made.
    fn with(refusal: fn(String) -> Refusal, words: impl FnOnce() -> String) -> Self;
}

impl Refuses for Refusal {
    fn with(refusal: fn(String) -> Refusal, words: impl FnOnce() -> String) -> Self {
        refusal(words())
    }
}

/// A refusal without words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wordless {
    /// See [`Refusal::error`].
    pub error: LeaseError,
    /// See [`Refusal::class`].
    pub class: RefusalClass,
}

impl From<Refusal> for Wordless {
    fn from(Refusal { error, class, .. }: Refusal) -> Self {
        Self { error, class }
    }
}

impl Refuses for Wordless {
    fn with(refusal: fn(String) -> Refusal, _words: impl FnOnce() -> String) -> Self {
        refusal(String::new()).into()
    }
}
