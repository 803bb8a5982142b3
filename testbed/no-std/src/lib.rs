//! Built by `cargo xtask test`. This crate has its own panic handler. If one of the crates below uses std, there are
//! two panic handlers, and the compiler refuses.
#![no_std]

use core::{
    alloc::{GlobalAlloc, Layout},
    panic::PanicInfo,
    ptr,
};

pub use fabricbios_fallback_udp as fallback_udp;
pub use fabricbios_lease as lease;
pub use fabricbios_wire as wire;

/// An allocator without memory: this program is never run.
struct Nothing;

// SAFETY: an allocator without memory has to return null, and no memory is ever given back to it.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, _pointer: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Nothing = Nothing;

#[panic_handler]
fn stop(_info: &PanicInfo<'_>) -> ! {
    loop {}
}
