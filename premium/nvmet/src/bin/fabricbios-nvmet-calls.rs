//! The asking process as a program of its own, for tests; the daemon starts itself with other arguments.

use std::process::ExitCode;

fn main() -> ExitCode {
    fabricbios_nvmet::ask_rdma_main()
}
