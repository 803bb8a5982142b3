use crate::kinds::settings::tests::Examples;

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--gpus", "all"],
    values: &[
        (
            "gpus",
            &["all", "GPU-1,GPU-2"],
            &["", "GPU-1,,GPU-2"],
            "GPU-",
        ),
        (
            "gpu-share-mode",
            &["exclusive", "fractional"],
            &["0", "shared", ""],
            "fractional",
        ),
        (
            "gpu-worker-memory-max",
            &["64MiB", "1024TiB"],
            &["0", "67108863", "1025TiB", "much"],
            "4GiB",
        ),
        (
            "gpu-per-tenant-max",
            &["0", "80GiB"],
            &["18446744073709551616", "much"],
            "80GiB",
        ),
    ],
    idle: &[
        "gpu-share-mode",
        "gpu-worker-memory-max",
        "gpu-per-tenant-max",
    ],
    contradictions: &[],
};
