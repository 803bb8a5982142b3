//! A program for tests: the supervisor of helper processes for the calls of this crate, and the worker of a session.
//! The daemon instead starts its own program with a subcommand.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("gpu-worker") {
        return fabricbios_gpu::worker::worker_main();
    }
    match fabricbios_helper::supervise(&fabricbios_gpu::management::handlers()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
