//! For tests: the supervisor of helper processes for the calls of this crate. The daemon starts its own program with
//! another argument instead.

fn main() -> std::io::Result<()> {
    fabricbios_helper::supervise(&fabricbios_nvmet::calls())
}
