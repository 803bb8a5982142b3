//! Stand-in of `libnvidia-ml.so.1`, NVIDIA's management library: no GPU, for tests.
//!
//! It has only the symbols that the project uses, with the shapes of NVIDIA's `nvml.h` as `nvml-wrapper-sys` has them.
//! Handles are numbers here. The emulated device is in `stand_in_device`.

mod calls;
mod errors;
mod events;
mod handle;
mod health;
mod library;
mod partitions;
