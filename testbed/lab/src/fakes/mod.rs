//! Stand-ins for hardware, with the refusals of the real thing and knobs for its faults.

mod memory;

pub use memory::{FakeMemory, Step, UNREACHABLE_QPN};
