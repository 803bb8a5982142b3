use crate::kinds::settings::tests::Examples;

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--mem-bytes", "1GiB"],
    values: &[
        (
            "mem-bytes",
            &["4096", "1024TiB"],
            &[
                "0",
                "4095",
                "4097",
                "1025TiB",
                "99999999999999999999",
                "much",
                "-1",
                "1.5",
            ],
            "256MiB",
        ),
        ("mem-file", &["/dev/shm/a"], &[""], "value"),
        (
            "mem-arena",
            &["a=4096", "near=64MiB,file=/dev/shm/a,numa-node=1"],
            &[
                "",
                "0",
                "a",
                "=4096",
                "a=",
                "a=0",
                "a=4097",
                "a=much",
                "a=1025TiB",
                "a=4096,file=",
                "a=4096,numa-node=-1",
                "a=4096,node=1",
            ],
            "near=64GiB,file=/dev/shm/near,numa-node=1",
        ),
        (
            "fbmu-listen",
            &["none", "[::]:5702"],
            &["0", "[::]", "off", ""],
            "192.0.2.10:5702",
        ),
        ("rdma-device", &["auto", "mlx5_0"], &[""], "mlx5_0"),
        (
            "rdma-strategy",
            &["auto", "window", "region"],
            &["0", "regoin", ""],
            "region",
        ),
        (
            "rdma-cm-listen",
            &["192.0.2.10:7471", "[2001:db8::1]:1", "[fe80::1%2]:7471"],
            &[
                "192.0.2.10",
                "0.0.0.0:7471",
                "[::]:7471",
                "192.0.2.10:0",
                "[fe80::1]:7471",
                "[fe80::1%eth0]:7471",
                "none",
                "",
            ],
            "192.0.2.10:7471 or [fe80::1%2]:7471",
        ),
        (
            "mem-per-tenant-max",
            &["0", "64GiB", "18446744073709551615"],
            &["18446744073709551616", "-1", "much"],
            "64GiB",
        ),
    ],
    idle: &[
        "mem-file",
        "rdma-strategy",
        "rdma-cm-listen",
        "mem-per-tenant-max",
    ],
    contradictions: &[
        (&["--profile", "bare-metal", "--mem-bytes", "1MiB"], "65536"),
        (
            &["--profile", "bare-metal", "--mem-file", "/dev/shm/a"],
            "static arena",
        ),
        (
            &["--profile", "bare-metal", "--rdma-device", "mlx5_0"],
            "static arena",
        ),
        (
            &["--profile", "bare-metal", "--mem-arena", "a=64KiB"],
            "--mem-arena a with --profile bare-metal",
        ),
        (
            &["--mem-bytes", "1MiB", "--mem-arena", "mem0=1MiB"],
            "--mem-arena mem0 with --mem-bytes",
        ),
        (
            &["--mem-arena", "a=1MiB", "--mem-arena", "a=2MiB"],
            "--mem-arena names the same arena twice",
        ),
        (
            &[
                "--mem-arena",
                "a=1MiB,file=/dev/shm/x",
                "--mem-arena",
                "b=1MiB,file=/dev/shm/x",
            ],
            "--mem-arena names the same file twice",
        ),
        (
            &[
                "--mem-bytes",
                "1MiB",
                "--mem-file",
                "/dev/shm/x",
                "--mem-arena",
                "b=1MiB,file=/dev/shm/x",
            ],
            "or that of --mem-file",
        ),
        (
            &["--mem-arena", "a=1MiB", "--mem-file", "/dev/shm/x"],
            "--mem-file without --mem-bytes",
        ),
        (
            &[
                "--mem-arena",
                "a=1MiB",
                "--rdma-device",
                "none",
                "--fbmu-listen",
                "none",
            ],
            "--mem-arena with --rdma-device none",
        ),
        (&["--rdma-device", "mlx5_0"], "--mem-bytes"),
        (
            &[
                "--profile",
                "bare-metal",
                "--rdma-cm-listen",
                "192.0.2.10:7471",
            ],
            "static arena",
        ),
        (
            &[
                "--mem-bytes",
                "1MiB",
                "--rdma-device",
                "none",
                "--rdma-cm-listen",
                "192.0.2.10:7471",
            ],
            "--rdma-cm-listen 192.0.2.10:7471 with --rdma-device none",
        ),
        (
            &[
                "--mem-bytes",
                "1MiB",
                "--rdma-device",
                "none",
                "--fbmu-listen",
                "none",
            ],
            "no transport",
        ),
    ],
};
