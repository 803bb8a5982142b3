//! `fabricctl`.

use std::process::ExitCode;

fn main() -> ExitCode {
    fabricbios_cli::main()
}
