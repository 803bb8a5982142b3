//! Whether a promise is enforced. Reserved bytes fail closed: they decode to an error, never to the nearest value. So do
//! the classes of isolation, which are in the modules of their kinds.

use crate::names::words;

words! {
    /// Whether a class or a rate is enforced. Value of 0x090B, and of each class in 0x0B06.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Enforcement: u8, "enforcement", from_byte {
        /// The node has asked its system for it and cannot prove that it is enforced.
        BestEffort = 0, "best_effort";
        /// The node enforces it.
        Enforced = 1, "enforced";
    }
}
