//! `fabricbiosd`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fabricbios_node::process::program::main()
}
