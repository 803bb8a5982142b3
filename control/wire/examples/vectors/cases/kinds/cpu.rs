//! CPU cores.

use super::*;

pub(crate) fn cases(c: &mut Vec<Case>) {
    let plain = &samples::alloc(ResourceType::Mem);
    terms(c, plain);
    bad_terms(c);
    leases(c);
    no_memory_nodes(c);
    bad_leases(c);
}

#[rustfmt::skip] // One case a line.
fn terms(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    let none = CpuTerms::default;
    for class in CpuIsolationClass::ALL {
        let alloc = plain.clone().with_terms(cpu(*class));
        params(c, &format!("cpu_isolation_{class}"), "002 §2.1", &alloc);
    }
    let mut add = |name: &str, about: &str, terms: CpuTerms| {
        params(c, &format!("cpu_{name}"), about, &plain.clone().with_terms(terms));
    };
    add("all", "all that is asked of CPU cores", cpu_terms());
    for mode in CpuExecutionMode::ALL {
        let terms = CpuTerms { execution_mode: Some(*mode), ..none() };
        add(&format!("execution_mode_{mode}"), "001, execution mode", terms);
    }
    for width in [1, 0x0102, u16::MAX] {
        let terms = CpuTerms { execution_width: Some(width), ..none() };
        add(&format!("execution_width_{width}"), "threads that run at once", terms);
    }
    for partition in [CpuPartition::Root, CpuPartition::Isolated] {
        let terms = CpuTerms { partition: Some(partition), ..none() };
        add(&format!("partition_{partition}"), "a partition of cgroup v2", terms);
    }
}

#[rustfmt::skip] // One case a line.
fn bad_terms(c: &mut Vec<Case>) {
    let mut width = |name: &str, about: &str, bytes: Vec<u8>| {
        bad_tlv(c, &format!("cpu_execution_width_{name}"), about, bytes);
    };
    width("0", "no thread", tlv(0x0909, &[0, 0]));
    width("length_0", "length 0", tlv(0x0909, &[]));
    width("length_1", "length 1", tlv(0x0909, &[1]));
    width("length_3", "length 3", tlv(0x0909, &[0, 0, 1]));
    width("truncated", "a byte is missing", tlv(0x0909, &[0, 1])[..5].to_vec());
    width("twice", "the tag again", tlv(0x0909, &[0, 1]).repeat(2));
}

#[rustfmt::skip] // One case a line.
fn leases(c: &mut Vec<Case>) {
    let mut add = |name: &str, about: &str, lease: LeaseInfo| {
        answer(c, &format!("lease_cpu{name}"), about, MessageType::LeaseAlloc, Reply::Lease(lease));
    };
    let whole = cpu_lease(cpu_binding());
    add("", "two cores that the lease has alone", whole.clone());
    add("_full", "every coordinate of a lease of cores", cpu_lease(full_cpu_binding()));
    let edges = CpuBinding { cpus: CpuRange::of([0, 2, u16::MAX]), ..cpu_binding() };
    add("_edges", "the first and the last number, and ranges of one", cpu_lease(edges));
    for class in CpuIsolationClass::ALL {
        for mode in CpuExecutionMode::ALL {
            let mut lease = cpu_lease(cpu_binding());
            lease.effective.cpu_isolation = Some(*class);
            lease.effective.cpu_execution_mode = Some(*mode);
            add(&format!("_{class}_{mode}"), "the class and the mode in force", lease);
        }
    }
    for partition in CpuPartition::ALL {
        let binding = CpuBinding { partition: *partition, ..cpu_binding() };
        let mut lease = cpu_lease(binding);
        lease.effective.cpu_partition = Some(*partition).filter(|it| *it != CpuPartition::Member);
        add(&format!("_partition_{partition}"), "a member of no partition has no echo", lease);
    }
    add("_without_place", "a lease that has no cores yet", LeaseInfo {
        binding: Binding::plain(ResourceType::Cpu),
        ..whole
    });
}

fn no_memory_nodes(c: &mut Vec<Case>) {
    let lease = cpu_lease(cpu_binding());
    let about = "an empty list of NUMA nodes says the same as none";
    with_more(c, "cpu_no_memory_nodes", about, lease, &tlv(0x0604, &[]));
}

#[rustfmt::skip] // One case a line.
fn bad_leases(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut cpu = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let lease = cpu_lease(full_cpu_binding());
        let bytes = damaged_lease(lease, tag, instead);
        bad(c, &format!("bad_answer_cpu_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in 0x0601..=0x0603 {
        cpu(&format!("without_{missing:04x}"), "a CPU tag is missing", missing, &[]);
    }
    for tag in 0x0601..=0x0605 {
        let good = match tag {
            0x0602 => tlv(tag, b"/a"),
            0x0603 => tlv(tag, &[1]),
            0x0605 => tlv(tag, &[1; 8]),
            _ => tlv(tag, &[0, 1, 0, 1]),
        };
        cpu(&format!("twice_{tag:04x}"), "the tag again", tag, &good.repeat(2));
        // The truncated TLV is the last one of the area.
        let cut = &good[..good.len() - 1];
        cpu(&format!("truncated_{tag:04x}"), "a length that runs out of the area", 0x090A, cut);
    }
    let ranges = |ranges: &[[u16; 2]]| -> Vec<u8> {
        ranges.iter().flatten().flat_map(|it| it.to_be_bytes()).collect()
    };
    for (word, tag) in [("cpus", 0x0601), ("nodes", 0x0604)] {
        let mut list = |name: &str, about: &str, value: &[u8]| {
            cpu(&format!("{word}_{name}"), about, tag, &tlv(tag, value));
        };
        list("touch", "two ranges that are one", &ranges(&[[0, 1], [2, 3]]));
        list("overlap", "a number twice", &ranges(&[[0, 2], [2, 3]]));
        list("again", "a range twice", &ranges(&[[0, 2], [0, 2]]));
        list("descend", "the greater range first", &ranges(&[[4, 5], [0, 1]]));
        list("backwards", "a range that ends before it begins", &ranges(&[[3, 2]]));
        list("after_the_last", "nothing comes after 65535", &ranges(&[[9, u16::MAX], [0, 0]]));
        list("length_3", "3 bytes", &[0, 0, 0]);
        list("length_6", "a range and a half", &[0, 0, 0, 0, 0, 2]);
        let many: Vec<[u16; 2]> = (0..=4_096).map(|n| [2 * n, 2 * n]).collect();
        list("4097", "one more range than 4,096", &ranges(&many));
    }
    cpu("cpus_none", "no CPU", 0x0601, &tlv(0x0601, &[]));
    cpu("cgroup_empty", "no path", 0x0602, &tlv(0x0602, b""));
    cpu("cgroup_513", "one byte too many", 0x0602, &tlv(0x0602, &[b'a'; 513]));
    cpu("cgroup_newline", "two lines", 0x0602, &tlv(0x0602, b"/a\n/b"));
    cpu("cgroup_not_ascii", "an é", 0x0602, &tlv(0x0602, "/é".as_bytes()));
    cpu("cgroup_not_utf8", "0xff", 0x0602, &tlv(0x0602, b"/\xff"));
    for byte in [3, 0x7F, 0xFF] {
        let value = tlv(0x0603, &[byte]);
        cpu(&format!("partition_{byte:02x}"), "a reserved byte fails closed", 0x0603, &value);
    }
    cpu("partition_length_2", "length 2", 0x0603, &tlv(0x0603, &[0, 1]));
    let quota = |quota: u32, period: u32| {
        tlv(0x0605, &[quota.to_be_bytes(), period.to_be_bytes()].concat())
    };
    cpu("quota_0", "no time at all", 0x0605, &quota(0, 100_000));
    cpu("period_0", "no period", 0x0605, &quota(100_000, 0));
    cpu("quota_length_7", "7 bytes", 0x0605, &tlv(0x0605, &[1; 7]));
    cpu("quota_length_9", "9 bytes", 0x0605, &tlv(0x0605, &[1; 9]));
    for (word, tag, byte) in [("isolation", 0x0902, 3), ("execution_mode", 0x0908, 2), ("partition", 0x090A, 3)] {
        let value = tlv(tag, &[byte]);
        cpu(&format!("echo_{word}_{byte:02x}"), "a reserved byte fails closed", tag, &value);
    }
    cpu("echo_partition_00", "what shares its CPUs has no echo", 0x090A, &tlv(0x090A, &[0]));
    cpu("echo_width_0", "no thread", 0x0909, &tlv(0x0909, &[0, 0]));
    cpu("echo_width_twice", "the tag again", 0x0909, &tlv(0x0909, &[0, 1]).repeat(2));
}

pub(crate) fn cpu(class: CpuIsolationClass) -> CpuTerms {
    CpuTerms {
        isolation: Some(class),
        ..CpuTerms::default()
    }
}

/// Every term for CPU cores.
pub(crate) fn cpu_terms() -> CpuTerms {
    CpuTerms {
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(0x0104),
        partition: Some(CpuPartition::Isolated),
        ..cpu(CpuIsolationClass::WholeCore)
    }
}

/// Cores that no other lease has.
pub(crate) fn cpu_binding() -> CpuBinding {
    CpuBinding {
        cpus: CpuRange::of([2, 3]),
        cgroup: "/fabricbios.slice/leases/10111213-1".to_owned(),
        partition: CpuPartition::Root,
        memory_nodes: vec![],
        quota: None,
    }
}

/// The same with every part. The kernel has given siblings numbers that are not neighbours.
pub(crate) fn full_cpu_binding() -> CpuBinding {
    CpuBinding {
        cpus: CpuRange::of([2, 3, 66, 67, 0x0101]),
        partition: CpuPartition::Isolated,
        memory_nodes: CpuRange::of([0, 2]),
        quota: Some(CpuQuota {
            quota_us: 350_000,
            period_us: 100_000,
        }),
        ..cpu_binding()
    }
}

pub(crate) fn cpu_lease(binding: CpuBinding) -> LeaseInfo {
    LeaseInfo {
        capacity: 2,
        effective: Effective {
            cpu_isolation: Some(CpuIsolationClass::WholeCore),
            cpu_execution_mode: Some(CpuExecutionMode::SharedMemory),
            cpu_execution_width: Some(2),
            cpu_partition: Some(CpuPartition::Root),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Cpu(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Cpu)
        })
    }
}
