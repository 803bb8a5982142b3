use std::{fs, os::unix::fs::symlink};

use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    BLOCK_RO, Epoch, GPU_ROCM, InventoryExtension, NIC_LINK_UP, NIC_SRIOV, NodeId, ResourceType,
    cpu_flags, health, resource_flags,
};

use super::*;
use crate::{
    inventory::hardware::{Hardware, flat, resource_id, structured},
    kinds::{
        block::detect::BlockFound, cpu::detect::CpuFound, gpu::detect::GpuFound,
        memory::detect::MemFound, net::detect::NicFound,
    },
};

/// The files of a simulated kernel: `path = text`, `path/` a directory, `path -> target` a link.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(rows: &[&str]) -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        rows.iter().for_each(|row| machine.put(row));
        machine
    }

    /// An x86 machine with two cores of two threads, a NIC and a disk.
    fn usual() -> Self {
        Self::new(&[
            "proc/meminfo = MemTotal:       16316056 kB\nMemFree:  100 kB\n",
            "proc/cpuinfo = processor\t: 0\ncpu MHz\t\t: 2400.077\nflags\t\t: fpu sse4_2 lm\n",
            "sys/devices/system/cpu/online = 0-3\n",
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list = 0,2\n",
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list = 1,3\n",
            "sys/devices/system/cpu/cpu2/topology/thread_siblings_list = 0,2\n",
            "sys/devices/system/cpu/cpu3/topology/thread_siblings_list = 1,3\n",
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq = 3700000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq = 3600000\n",
            "sys/class/net/lo/mtu = 65536\n",
            "sys/devices/nic/net/eth0/speed = 25000\n",
            "sys/devices/nic/net/eth0/mtu = 9000\n",
            "sys/devices/nic/net/eth0/operstate = up\n",
            "sys/devices/nic/net/eth0/device -> ../..",
            "sys/devices/nic/sriov_totalvfs = 7\n",
            "sys/class/net/eth0 -> ../../devices/nic/net/eth0",
            "sys/bus/pci/devices/",
            "sys/block/loop0/size = 2048\n",
            "sys/block/nvme0n1/size = 2048\n",
            "sys/block/nvme0n1/ro = 0\n",
            "sys/block/nvme0n1/removable = 0\n",
            "sys/block/nvme0n1/queue/logical_block_size = 4096\n",
            "sys/block/nvme0n1/device/",
        ])
    }

    fn put(&self, row: &str) {
        let root = self.dir.path();
        let parent = |path: &str| fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        if let Some((path, target)) = row.split_once(" -> ") {
            parent(path);
            symlink(target, root.join(path)).unwrap();
        } else if let Some((path, text)) = row.split_once(" = ") {
            parent(path);
            fs::write(root.join(path), text).unwrap();
        } else {
            fs::create_dir_all(root.join(row)).unwrap();
        }
    }

    fn with(self, row: &str) -> Self {
        self.put(row);
        self
    }

    fn without(self, path: &str) -> Self {
        let at = self.dir.path().join(path);
        if at.is_dir() {
            fs::remove_dir_all(at).unwrap();
        } else {
            fs::remove_file(at).unwrap();
        }
        self
    }

    fn detect(&self) -> Found {
        let tree = |name| Tree::new(self.dir.path().join(name));
        let mut settings = KindSettings::default();
        settings.shared.auto_detect = true;
        let looking = Looking {
            settings: &settings,
            sources: &Sources {
                proc: tree("proc"),
                sys: tree("sys"),
            },
            gpus: &FoundGpus::default(),
        };
        looking.look()
    }
}

fn all<T: Hardware + Clone>(found: &Found) -> Vec<T> {
    found.of::<T>().cloned().collect()
}

fn cpu(found: &Found) -> &CpuFound {
    found.of::<CpuFound>().next().unwrap()
}

fn cores(cpu: &CpuFound) -> Vec<Vec<u32>> {
    let groups = cpu.topology.groups.iter();
    groups.map(|group| group.cpus.clone()).collect()
}

fn names<T: Hardware>(found: &Found) -> Vec<String> {
    let rows = found.of::<T>().map(|it| it.row().name.to_owned());
    rows.collect()
}

#[test]
fn a_usual_machine_is_found_whole_and_without_warnings() {
    let found = Machine::usual().detect();
    assert_eq!(found.warnings.0, [""; 0]);
    let memory = MemFound {
        bytes: 16_316_056 * 1024,
    };
    assert_eq!(all::<MemFound>(&found), [memory]);
    let cpu = cpu(&found);
    assert_eq!(cores(cpu), [vec![0, 2], vec![1, 3]]);
    assert_eq!((cpu.cores(), cpu.topology.online.len()), (2, 4));
    assert_eq!(cpu.max_mhz, 3700);
    assert!(cpu.topology.is_complete());
    let arch = cpu_flags::ARCH_X86_64 << cpu_flags::ARCH_SHIFT;
    assert_eq!(cpu.arch_flags, arch | cpu_flags::CRC32);
    let eth0 = NicFound {
        name: "eth0".into(),
        speed_bps: 25_000_000_000,
        mtu: 9000,
        link_up: true,
        vfs_max: 7,
        degraded: false,
    };
    assert_eq!(all::<NicFound>(&found), [eth0]);
    let nvme = BlockFound {
        name: "nvme0n1".into(),
        bytes: 1 << 20,
        block_size: 4096,
        read_only: false,
        removable: false,
        degraded: false,
    };
    assert_eq!(all::<BlockFound>(&found), [nvme]);
    assert_eq!(found.listed.len(), 4);
}

#[test]
fn an_empty_machine_has_nothing_and_says_why() {
    let found = Machine::new(&[]).detect();
    assert!(found.listed.is_empty(), "{:?}", found.listed);
    assert_eq!(found.warnings.0.len(), 5, "{:?}", found.warnings);
    assert!(
        found.warnings.0[0].starts_with("mem0: not listed: read ")
            && found.warnings.0[0].contains("/proc/meminfo: No such file")
    );
}

#[test]
fn memory_that_makes_no_sense_is_left_out() {
    for text in [
        "",
        "MemTotal: lots kB",
        "MemTotal: 5",
        "MemTotal: 99999999999999999999 kB",
        "MemTotal: 18014398509481985 kB",
    ] {
        let found = Machine::usual()
            .with(&format!("proc/meminfo = {text}"))
            .detect();
        assert!(all::<MemFound>(&found).is_empty(), "{text}");
        assert_eq!(found.warnings.0.len(), 1, "{text}");
        assert_eq!(all::<CpuFound>(&found).len(), 1, "the rest is still found");
    }
}

#[test]
fn a_hole_in_the_topology_is_told_and_not_papered_over() {
    let siblings = "sys/devices/system/cpu/cpu3/topology/thread_siblings_list";
    for machine in [
        Machine::usual().without(siblings),
        Machine::usual().with(&format!("{siblings} = 0-3\n")),
        Machine::usual().with(&format!("{siblings} = what\n")),
    ] {
        let found = machine.detect();
        let cpu = cpu(&found);
        assert!(!cpu.topology.is_complete());
        assert_eq!((cores(cpu), cpu.cores()), (vec![vec![0, 2]], 0));
        assert!(
            found
                .warnings
                .0
                .iter()
                .any(|text| text.contains("topology incomplete"))
        );
        let node = NodeId([7; 32]);
        let cap = structured(&found.listed, node, Epoch(1)).cpu_caps[0];
        assert_eq!(
            (cap.flags & cpu_flags::TOPOLOGY_COMPLETE, cap.health),
            (0, health::DEGRADED)
        );
        let flat = flat(&found.listed, &node);
        let entry = flat
            .iter()
            .find(|entry| entry.resource_type == ResourceType::Cpu)
            .unwrap();
        assert_eq!(entry.flags, resource_flags::DEGRADED);
    }
}

#[test]
fn offline_siblings_do_not_count() {
    let found = Machine::usual()
        .with("sys/devices/system/cpu/online = 0-2\n")
        .detect();
    assert_eq!(cores(cpu(&found)), [vec![0, 2], vec![1]]);
    assert!(cpu(&found).topology.is_complete());
}

#[test]
fn frequency_and_flags_come_from_cpuinfo_where_sysfs_is_silent() {
    let found = Machine::usual()
        .without("sys/devices/system/cpu/cpu0/cpufreq")
        .without("sys/devices/system/cpu/cpu1/cpufreq")
        .detect();
    assert_eq!((cpu(&found).max_mhz, found.warnings.0.len()), (2400, 0));
    let arm = "proc/cpuinfo = processor\t: 0\nFeatures\t: fp asimd crc32 sve\n";
    let found = Machine::usual()
        .with(arm)
        .without("sys/devices/system/cpu/cpu0/cpufreq")
        .detect();
    let arch = cpu_flags::ARCH_AARCH64 << cpu_flags::ARCH_SHIFT;
    assert_eq!(
        cpu(&found).arch_flags,
        arch | cpu_flags::NEON | cpu_flags::CRC32
    );
    assert_eq!(cpu(&found).max_mhz, 3600);
}

#[test]
fn a_nic_without_link_or_with_odd_files_is_still_listed() {
    let down = Machine::usual()
        .with("sys/devices/nic/net/eth0/speed = -1\n")
        .with("sys/devices/nic/net/eth0/operstate = down\n");
    let nic = all::<NicFound>(&down.detect()).remove(0);
    assert_eq!(
        (nic.speed_bps, nic.link_up, nic.degraded),
        (0, false, false)
    );
    let odd = Machine::usual()
        .with("sys/devices/nic/net/eth0/mtu = many\n")
        .detect();
    let nic = odd.of::<NicFound>().next().unwrap();
    assert_eq!((nic.mtu, nic.degraded), (0, true));
    assert!(
        odd.warnings.0[0].contains("eth0/mtu: expected u32, got `many`"),
        "{:?}",
        odd.warnings.0
    );
}

#[test]
fn virtual_functions_and_virtual_interfaces_are_not_listed() {
    let found = Machine::usual()
        .with("sys/class/net/eth0v0/device/physfn -> ../../nic")
        .with("sys/class/net/veth0/mtu = 1500\n")
        .detect();
    assert_eq!(names::<NicFound>(&found), ["eth0"]);
}

#[test]
fn gpus_are_nvidia_and_amd_display_controllers() {
    let device = |at: &str, class: &str, vendor: &str| {
        [
            format!("sys/bus/pci/devices/{at}/class = {class}\n"),
            format!("sys/bus/pci/devices/{at}/vendor = {vendor}\n"),
        ]
    };
    let rows = [
        device("0000:00:02.0", "0x030000", "0x1234"),
        device("0000:01:00.0", "0x030200", "0x10de"),
        device("0000:01:00.1", "0x040300", "0x10de"),
        device("0000:02:00.0", "0x030000", "0x1002"),
    ];
    let machine = Machine::usual();
    rows.iter().flatten().for_each(|row| machine.put(row));
    machine.put("sys/bus/pci/devices/0000:02:00.0/mem_info_vram_total = 17163091968\n");
    machine.put("sys/bus/pci/devices/0000:02:00.0/driver -> ../../drivers/amdgpu");
    machine.put("sys/bus/pci/devices/0000:03:00.0/");
    let found = machine.detect();
    assert_eq!(names::<GpuFound>(&found), ["0000:01:00.0", "0000:02:00.0"]);
    let vram = found.of::<GpuFound>().map(|it| it.vram_bytes);
    assert_eq!(vram.collect::<Vec<_>>(), [0, 17_163_091_968]);
    let warnings = found.warnings.0;
    assert!(warnings.len() == 1 && warnings[0].starts_with("0000:03:00.0: skipped"));
    let gpus = structured(&found.listed, NodeId([7; 32]), Epoch(1)).gpus;
    assert_eq!((gpus[0].flags, gpus[1].flags), (0, GPU_ROCM));
}

#[test]
fn disks_that_are_empty_hidden_made_of_others_or_another_machines_are_not_listed() {
    let found = Machine::usual()
        .with("sys/block/dm-0/size = 4096\n")
        .with("sys/block/sda/size = 0\n")
        .with("sys/block/sda/device/")
        .with("sys/block/nvme0c0n1/hidden = 1\n")
        .with("sys/block/nvme0c0n1/device/")
        .with("sys/block/sdb/size = 18446744073709551615\n")
        .with("sys/block/sdb/device/")
        .with("sys/block/nvme1n1/size = 4096\n")
        .with("sys/block/nvme1n1/device/transport = tcp\n")
        .with("sys/block/nvme2n1/size = 4096\n")
        .with("sys/block/nvme2n1/device/nvme2/transport = rdma\n")
        .detect();
    assert_eq!(names::<BlockFound>(&found), ["nvme0n1"]);
    assert!(
        found
            .warnings
            .0
            .iter()
            .any(|text| text.starts_with("sdb: skipped"))
    );
}

#[test]
fn a_disk_of_unknown_writability_is_read_only_and_degraded() {
    let found = Machine::usual().without("sys/block/nvme0n1/ro").detect();
    let block = found.of::<BlockFound>().next().unwrap();
    assert!(block.read_only && block.degraded);
    let disk = structured(&found.listed, NodeId([7; 32]), Epoch(1)).block_devs[0];
    assert_eq!((disk.flags, disk.health), (BLOCK_RO, health::DEGRADED));
}

#[test]
fn nothing_that_was_only_detected_is_available() {
    let found = Machine::usual().detect();
    let node = NodeId([7; 32]);
    let flat = flat(&found.listed, &node);
    assert_eq!(flat.len(), 4);
    assert!(
        flat.iter()
            .all(|entry| entry.available == 0 && entry.capacity > 0)
    );
    let whole = structured(&found.listed, node, Epoch(3));
    assert_eq!((whole.epoch, whole.health), (Epoch(3), health::OK));
    let policy = whole.cpu_caps[0].flags >> cpu_flags::ISOLATION_SHIFT & 0b111;
    assert_eq!(
        (whole.cpu_caps[0].cores, policy),
        (0, 0),
        "no policy is stated, and no core can be leased under it"
    );
    assert_eq!(whole.nics[0].flags, NIC_SRIOV | NIC_LINK_UP);
    let nvme = resource_id(&node, ResourceType::Block, "nvme0n1");
    assert_eq!(whole.block_devs[0].resource_id, nvme);
    assert!(
        whole
            .extensions
            .contains(&InventoryExtension::Name(nvme, "nvme0n1".into()))
    );
    for entry in &flat {
        assert!(
            whole
                .extensions
                .contains(&InventoryExtension::Available(entry.resource_id, 0))
        );
    }
}

#[test]
fn ids_depend_on_node_kind_and_name_and_on_nothing_else() {
    let id = |node: u8, kind, name| resource_id(&NodeId([node; 32]), kind, name);
    let mem0 = id(7, ResourceType::Mem, "mem0");
    // sha256("fabricbios-resource-v0" || 07 x 32 || 0002 || "mem0"), computed with another program.
    assert_eq!(mem0.to_string(), "2be900876ea4a756dafdd3517a49c2bc");
    assert_ne!(mem0, id(8, ResourceType::Mem, "mem0"));
    assert_ne!(mem0, id(7, ResourceType::Cpu, "mem0"));
    assert_ne!(mem0, id(7, ResourceType::Mem, "mem1"));
}
