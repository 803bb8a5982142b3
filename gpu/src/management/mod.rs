//! Calls of the vendors' management libraries: discovery, account, scrub, reset and health.
//!
//! These libraries may hang or crash, so helper processes load them, never the daemon. Helper processes also read the
//! kernel's own files (sysfs, proc).
#![cfg_attr(
    not(all(feature = "gpu-cuda", feature = "gpu-hip")),
    allow(
        dead_code,
        reason = "the half of a vendor that is left out uses the rest"
    )
)]

mod account;
#[cfg(feature = "gpu-hip")]
mod amd;
mod health_watch;
#[cfg(not(all(feature = "gpu-cuda", feature = "gpu-hip")))]
mod left_out;
mod nodes;
#[cfg(feature = "gpu-cuda")]
mod nvidia;
mod probe;
mod reset;
mod scrub;
mod watch;

use std::{
    env,
    path::{Path, PathBuf},
};

use fabricbios_cgroup::nodes::{EndUsers, Holders};
use fabricbios_helper::Handler;
use fabricbios_kernfs::Tree;
#[cfg(not(feature = "gpu-hip"))]
use left_out as amd;
#[cfg(not(feature = "gpu-cuda"))]
use left_out as nvidia;

use crate::{Health, worker::Trial};

pub use account::{Account, Accounted, Process};
pub use health_watch::{HealthWatch, Tell};
pub use probe::{Probe, Probed, discover};
pub use reset::Reset;
pub use scrub::Scrub;
pub use watch::Watch;

/// The handlers of all calls of this module, for the supervisor of helper processes.
#[must_use]
pub fn handlers() -> Vec<Handler> {
    vec![
        Handler::of::<Probe>(),
        Handler::of::<Account>(),
        Handler::of::<Scrub>(),
        Handler::of::<scrub::OpenContext>(),
        Handler::of::<scrub::CloseContext>(),
        Handler::of::<Reset>(),
        Handler::of::<Watch>(),
        Handler::of::<Holders>(),
        Handler::of::<Trial>(),
        Handler::of::<EndUsers>(),
    ]
}

/// Test hook: the directory with dev, proc and sys for GPUs.
const ROOT: &str = "FABRICBIOS_GPU_ROOT";

/// The directories of the kernel's files.
#[derive(Debug)]
pub(crate) struct Roots {
    dev: PathBuf,
    pub(crate) proc: Tree,
    sys: Tree,
}

impl Roots {
    /// The directories of this machine.
    pub(crate) fn real() -> Self {
        Self::at(&env::var_os(ROOT).map_or_else(|| "/".into(), PathBuf::from))
    }

    pub(crate) fn at(root: &Path) -> Self {
        Self {
            dev: root.join("dev"),
            proc: Tree::new(root.join("proc")),
            sys: Tree::new(root.join("sys")),
        }
    }
}

/// True if dlopen(3) failed because this library does not exist. If the library exists and lacks another library, this
/// is false.
fn is_absent(library: &Path, error: &str) -> bool {
    let absent = format!(
        "{}: cannot open shared object file: No such file",
        library.display()
    );
    error.contains(&absent)
}

/// Combines all reports of a device's health: the worst one, with all texts of that degree.
pub(crate) fn worst(all: impl IntoIterator<Item = Health>) -> Health {
    let (mut degraded, mut silent, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for health in all {
        match health {
            Health::Good => {}
            Health::Degraded(why) => degraded.push(why),
            Health::Silent(why) => silent.push(why),
            Health::Failed(why) => failed.push(why),
        }
    }
    for whys in [&mut degraded, &mut silent, &mut failed] {
        whys.dedup();
    }
    match (&failed[..], &silent[..], &degraded[..]) {
        ([], [], []) => Health::Good,
        ([], [], whys) => Health::Degraded(whys.join("; ")),
        ([], whys, _) => Health::Silent(whys.join("; ")),
        (whys, ..) => Health::Failed(whys.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_health_counts() {
        let degraded = |why: &str| Health::Degraded(why.into());
        let failed = |why: &str| Health::Failed(why.into());
        assert_eq!(worst([]), Health::Good);
        assert_eq!(worst([Health::Good, Health::Good]), Health::Good);
        assert_eq!(
            worst([degraded("a"), Health::Good, degraded("b")]),
            degraded("a; b")
        );
        assert_eq!(
            worst([degraded("a"), failed("b"), degraded("c")]),
            failed("b")
        );
        assert_eq!(worst([failed("b"), failed("b")]), failed("b"));
    }

    #[test]
    fn a_library_that_lacks_another_one_is_there() {
        let library = Path::new("libamdhip64.so.5");
        let absent =
            |of: &str| format!("{of}: cannot open shared object file: No such file or directory");
        assert!(is_absent(library, &absent("libamdhip64.so.5")));
        assert!(!is_absent(library, &absent("libhsa-runtime64.so.1")));
        assert!(!is_absent(library, "libamdhip64.so.5: invalid ELF header"));
    }
}
