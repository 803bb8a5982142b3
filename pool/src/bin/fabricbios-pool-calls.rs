//! The wiping process as a program of its own, for tests; the daemon starts itself with other arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    fabricbios_pool::wipe_main(&arguments)
}
