//! The process that starts processes for calls of this room, as a program of its own, for tests; the daemon starts itself
//! with another argument.

fn main() -> std::io::Result<()> {
    fabricbios_helper::supervise(&fabricbios_pool::calls())
}
