//! The vendors' libraries, which are loaded at run time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The names of each library, in the order in which they are tried. dlopen(3) searches its path for a name without a
/// slash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libraries {
    /// NVIDIA's management library.
    pub nvml: Vec<PathBuf>,
    /// CUDA's driver API.
    pub cuda: Vec<PathBuf>,
    /// AMD's HIP.
    pub hip: Vec<PathBuf>,
}

impl Default for Libraries {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        Self {
            nvml: names(&["libnvidia-ml.so.1", "libnvidia-ml.so"]),
            cuda: names(&["libcuda.so.1", "libcuda.so"]),
            hip: names(&[
                "libamdhip64.so.7",
                "libamdhip64.so.6",
                "libamdhip64.so.5",
                "libamdhip64.so",
            ]),
        }
    }
}
