use crate::kinds::settings::tests::Examples;

pub(crate) const EXAMPLES: Examples = Examples {
    base: ["--sriov-pf", "eth0"],
    values: &[
        (
            "macvlan-parent",
            &["eth0", "eth0=1000"],
            &["", "eth0=x", "a/b"],
            "eth0=1000",
        ),
        (
            "sriov-pf",
            &["eth0", "eth0=8"],
            &["", "eth0=x", "a/b"],
            "eth0=4",
        ),
        (
            "net-vlan",
            &["blue=0,100-199"],
            &["0", "blue=7-3", "blue=4095", ""],
            "blue=0,100-199",
        ),
        (
            "net-mac",
            &["blue=02:00:00:00:00:01"],
            &["0", "blue=02", ""],
            "blue=02:00:00:00:00:01",
        ),
        (
            "net-per-tenant-max",
            &["0", "4294967295"],
            &["4294967296", "-1", "many"],
            "10000",
        ),
    ],
    idle: &["net-vlan", "net-mac", "net-per-tenant-max"],
    contradictions: &[
        (
            &[
                "--sriov-pf",
                "eth0",
                "--net-vlan",
                "blue=0",
                "--net-vlan",
                "red=0",
                "--net-vlan",
                "blue=7",
            ],
            "--net-vlan names tenant blue twice",
        ),
        (
            &["--sriov-pf", "eth0", "--sriov-pf", "eth0=4"],
            "--sriov-pf names the same interface twice",
        ),
        (
            &["--macvlan-parent", "eth0", "--macvlan-parent", "eth0=9"],
            "--macvlan-parent names the same interface twice",
        ),
    ],
};
