//! The supervisor of helper processes for the calls of this crate, as a program for tests; the daemon starts itself with
//! another argument.

fn main() -> std::io::Result<()> {
    fabricbios_helper::supervise(&fabricbios_pool::calls())
}
