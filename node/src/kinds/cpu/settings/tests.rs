use crate::kinds::settings::tests::Examples;

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--cpus", "all"],
    values: &[
        (
            "cpus",
            &["all", "2-3,6"],
            &["some", "3-1", "-1", ""],
            "2-7,10",
        ),
        ("cpu-reserve", &["0", "1"], &["all", "3-1", ""], "2-7,10"),
        ("cpu-cgroup", &["/sys/fs/cgroup/a"], &[""], "value"),
        (
            "cpu-memory-max",
            &["1048576", "1MiB", "1024TiB"],
            &["0", "4KiB", "1048575", "1025TiB", "much"],
            "4GiB",
        ),
        (
            "cpu-pids-max",
            &["1", "4194304"],
            &["0", "4194305", "-1", "many"],
            "1024",
        ),
        (
            "cpu-isolation-policy",
            &[
                "best_effort",
                "BestEffort",
                "whole_core",
                "WholeCore",
                "strict_isolated",
                "strict",
                "StrictIsolated",
            ],
            &["0", "whole", ""],
            "whole_core",
        ),
        (
            "cpu-per-tenant-max",
            &["0", "4294967295"],
            &["4294967296", "-1", "many"],
            "16",
        ),
    ],
    idle: &[
        "cpu-reserve",
        "cpu-cgroup",
        "cpu-memory-max",
        "cpu-pids-max",
        "cpu-isolation-policy",
        "cpu-per-tenant-max",
    ],
    contradictions: &[],
};
