//! For tests: the process that starts processes for the calls of this crate. The daemon starts itself with another
//! argument.

fn main() -> std::io::Result<()> {
    fabricbios_helper::supervise(&fabricbios_nvmet::calls())
}
