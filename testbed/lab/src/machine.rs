//! The description of one virtual machine, and its QEMU command line. Pure.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

/// How the guest's instructions are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualisation of the host.
    Kvm,
    /// QEMU's own translation: slower, but it works everywhere.
    Tcg,
}

/// The processors of a guest, in the order of its CPU numbers: the threads of a core are neighbours, then the cores of a
/// socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processors {
    /// Sockets.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
    /// NUMA nodes, each with the same number of CPUs and an equal part of the memory.
    pub nodes: u32,
}

impl Processors {
    /// One socket with this many cores without siblings.
    #[must_use]
    pub fn cores(cores: u32) -> Self {
        Self {
            sockets: 1,
            cores,
            threads: 1,
            nodes: 1,
        }
    }

    /// The same processors divided among this many NUMA nodes. An error if they cannot be divided equally.
    pub fn in_nodes(self, nodes: u32) -> Result<Self> {
        let cpus = self.cpus();
        ensure!(
            nodes > 0 && cpus.is_multiple_of(nodes),
            "{cpus} CPUs cannot be divided among {nodes} NUMA nodes"
        );
        Ok(Self { nodes, ..self })
    }

    /// The number of CPUs of the guest's kernel.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

impl FromStr for Processors {
    type Err = anyhow::Error;

    /// Reads `2x2x2`: sockets, cores of each, threads of each.
    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<u32>> = text
            .split('x')
            .map(|number| {
                number
                    .parse()
                    .ok()
                    .filter(|number| (1..=255).contains(number))
            })
            .collect();
        let [sockets, cores, threads] = numbers
            .and_then(|numbers| <[u32; 3]>::try_from(numbers).ok())
            .with_context(|| format!("`{text}`: SOCKETSxCORESxTHREADS expected, such as 2x2x2"))?;
        ensure!(
            sockets * cores * threads <= 255,
            "`{text}`: at most 255 CPUs"
        );
        Ok(Self {
            sockets,
            cores,
            threads,
            nodes: 1,
        })
    }
}

/// A network interface of the guest. The first one is `eth0` in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// QEMU's `-netdev` value without its id, for example `stream,server=on,…`.
    pub netdev: String,
    /// The address that the guest sees, for example `52:54:00:77:00:01`.
    pub mac: String,
}

/// One virtual machine. A suite gets [`VmSpec::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSpec {
    /// The processors.
    pub processors: Processors,
    /// Memory in QEMU's notation, for example `4G`. The host provides memory only when the guest touches it.
    pub memory: String,
    /// CPU model; `None` is the accelerator's model with the most features.
    pub cpu_model: Option<String>,
    /// Further QEMU arguments, for example `-device igb,…`.
    pub devices: Vec<String>,
    /// Further kernel arguments, for example `intel_iommu=on`.
    pub kernel_arguments: Vec<String>,
    /// Network interfaces, in the guest's order.
    pub nics: Vec<Nic>,
    /// Raw disk images: `/dev/vda`, `/dev/vdb` and so on in the guest.
    pub disks: Vec<PathBuf>,
}

/// All features of TCG except fast string instructions, which TCG executes byte by byte, so that kernels that use them copy
/// and clear memory at half the speed; and except those that make each system call, page fault and change of the process
/// dearer: page tables of five levels, SMAP, and more registers to save.
const EMULATED: &str = "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc,-la57,-smap,-mpx,-pku";

impl Default for VmSpec {
    fn default() -> Self {
        Self {
            processors: Processors::cores(2),
            memory: "4G".to_owned(),
            cpu_model: None,
            devices: Vec::new(),
            kernel_arguments: Vec::new(),
            nics: Vec::new(),
            disks: Vec::new(),
        }
    }
}

/// The host files of one boot: its inputs and its logs.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Writable from the guest, as `/run/lab/share`.
    pub(crate) share: PathBuf,
    /// Output of the kernel and process 1.
    pub(crate) console: PathBuf,
    /// Process 1 writes this file at the end: the nonce of this boot and the command's exit code.
    pub(crate) exit: PathBuf,
}

impl VmSpec {
    /// Adds two network cards with virtual functions behind an IOMMU, and a plain interface on the same wire.
    pub(crate) fn add_igb(&mut self) {
        // With other models the firmware puts the virtual functions' registers above 4 GiB, where QEMU's igb does not
        // answer them.
        self.cpu_model = Some("Skylake-Server,-erms,-smap,-mpx,-pku".to_owned());
        let devices = [
            "-device",
            "pcie-root-port,id=igb-port,chassis=1,slot=1",
            "-netdev",
            "hubport,id=igb-wire,hubid=0",
            "-device",
            "igb,netdev=igb-wire,bus=igb-port,mac=52:54:00:77:00:04",
            "-device",
            "pcie-root-port,id=igb-port-1,chassis=2,slot=2",
            "-netdev",
            "hubport,id=igb-wire-1,hubid=0",
            "-device",
            "igb,netdev=igb-wire-1,bus=igb-port-1,mac=52:54:00:77:00:05",
            "-device",
            "intel-iommu,intremap=off",
        ];
        self.devices.extend(devices.map(str::to_owned));
        self.kernel_arguments.push("intel_iommu=on".to_owned());
        self.nics.push(Nic {
            netdev: "hubport,hubid=0".to_owned(),
            mac: "52:54:00:77:00:03".to_owned(),
        });
    }

    /// The arguments of `qemu-system-x86_64`. The command's output comes on QEMU's standard output;
    /// with `terminal`, QEMU's standard input and output are the guest's second serial line.
    pub(crate) fn command_line(
        &self,
        accelerator: Accelerator,
        files: &Files,
        terminal: bool,
    ) -> Vec<OsString> {
        let mut line = Line::default();
        self.base(&mut line, accelerator);
        self.boot(&mut line, files);
        channels(&mut line, files, terminal);
        file_systems(&mut line, files);
        self.network(&mut line);
        self.storage(&mut line);
        self.devices.iter().for_each(|device| line.word(device));
        line.0
    }

    fn base(&self, line: &mut Line, accelerator: Accelerator) {
        line.words([
            "-M",
            "q35",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
        ]);
        // A panic reboots at once, and a reboot ends QEMU.
        line.word("-no-reboot");
        let (accelerate, fullest) = match accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::Tcg => ("tcg,thread=multi", EMULATED),
        };
        line.words([
            "-accel",
            accelerate,
            "-cpu",
            self.cpu_model.as_deref().unwrap_or(fullest),
        ]);
        self.processors(line);
    }

    fn processors(&self, line: &mut Line) {
        let Processors {
            sockets,
            cores,
            threads,
            nodes,
        } = self.processors;
        let cpus = self.processors.cpus();
        let shape = format!("{cpus},sockets={sockets},cores={cores},threads={threads}");
        line.words(["-smp", &shape, "-m", &self.memory]);
        if nodes == 1 {
            return;
        }
        let (memory, each) = (bytes(&self.memory) / u64::from(nodes), cpus / nodes);
        for node in 0..nodes {
            let (first, last) = (node * each, (node + 1) * each - 1);
            let backend = format!("memory-backend-ram,id=node{node},size={memory}");
            line.words(["-object", &backend]);
            let members = format!("node,nodeid={node},cpus={first}-{last},memdev=node{node}");
            line.words(["-numa", &members]);
        }
    }

    fn boot(&self, line: &mut Line, files: &Files) {
        // An oops in the guest kernel is a failure of the run: the guest must not continue after it. With its protection
        // against defects of Intel's processors the kernel flushes the emulator's translations on every system call, so
        // that a guest with the network cards takes half as long again. Memory is not zeroed when the kernel allocates it for
        // itself: that costs much in the emulator, and would hide bytes of others.
        let mut kernel_line =
            "console=ttyS0 panic=-1 oops=panic quiet loglevel=5 mitigations=off init_on_alloc=0"
                .to_owned();
        for argument in &self.kernel_arguments {
            kernel_line.push(' ');
            kernel_line.push_str(argument);
        }
        line.pair("-kernel", &files.kernel);
        line.pair("-initrd", &files.initramfs);
        line.words(["-append", &kernel_line]);
    }

    fn network(&self, line: &mut Line) {
        for (index, nic) in self.nics.iter().enumerate() {
            let (kind, options) = nic.netdev.split_once(',').unwrap_or((&nic.netdev, ""));
            line.words(["-netdev", &format!("{kind},id=nic{index},{options}")]);
            // host_mtu lets the link carry the largest RDMA path MTU, 4096 bytes, in one frame.
            let device = format!(
                "virtio-net-pci,netdev=nic{index},mac={},host_mtu=9000",
                nic.mac
            );
            line.words(["-device", &device]);
        }
    }

    fn storage(&self, line: &mut Line) {
        for (index, disk) in self.disks.iter().enumerate() {
            // The guest's writes are in the host's cache even if the guest dies, so a flush need
            // not wait for the host's own disk.
            let drive = format!("if=none,id=disk{index},format=raw,cache=unsafe,file=");
            line.words(["-drive"]).value(&drive, disk);
            line.words(["-device", &format!("virtio-blk-pci,drive=disk{index}")]);
        }
    }
}

/// The bytes of a size in QEMU's notation, such as `4G`.
fn bytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(['K', 'M', 'G']);
    let shift = match &size[digits.len()..] {
        "K" => 10,
        "G" => 30,
        _ => 20,
    };
    digits.parse::<u64>().unwrap_or_default() << shift
}

fn channels(line: &mut Line, files: &Files, terminal: bool) {
    line.words(["-chardev"])
        .value("file,id=console,path=", &files.console);
    line.words(["-serial", "chardev:console"]);
    line.words(["-chardev"])
        .value("file,id=exit,path=", &files.exit);
    line.words(["-device", "virtio-serial-pci"]);
    line.words(["-device", "virtserialport,chardev=exit,name=lab.exit"]);
    if terminal {
        // With a multiplexer Ctrl-A X ends QEMU, also when the guest no longer answers.
        line.words(["-chardev", "stdio,id=terminal,mux=on,signal=off"]);
        line.words(["-serial", "chardev:terminal"]);
    } else {
        line.words(["-chardev", "stdio,id=output,signal=on"]);
        line.words(["-device", "virtserialport,chardev=output,name=lab.output"]);
    }
}

fn file_systems(line: &mut Line, files: &Files) {
    let root = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap";
    line.words([
        "-fsdev",
        root,
        "-device",
        "virtio-9p-pci,fsdev=root,mount_tag=root",
    ]);
    line.words(["-fsdev"])
        .value("local,id=share,security_model=none,path=", &files.share);
    line.words(["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]);
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn word(&mut self, word: &str) {
        self.0.push(word.into());
    }

    fn words<'a>(&mut self, words: impl IntoIterator<Item = &'a str>) -> &mut Self {
        words.into_iter().for_each(|word| self.word(word));
        self
    }

    fn pair(&mut self, option: &str, path: &std::path::Path) {
        self.word(option);
        self.0.push(path.into());
    }

    /// One option value that ends in a path. QEMU reads a doubled comma as a comma.
    fn value(&mut self, prefix: &str, path: &std::path::Path) {
        self.word(&format!(
            "{prefix}{}",
            path.display().to_string().replace(',', ",,")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files {
            kernel: "/k".into(),
            initramfs: "/i".into(),
            share: "/a,b".into(),
            console: "/c".into(),
            exit: "/e".into(),
        }
    }

    fn line(spec: &VmSpec, accelerator: Accelerator, terminal: bool) -> String {
        let words = spec.command_line(accelerator, &files(), terminal);
        words
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_hosts_root_is_never_writable() {
        let line = line(&VmSpec::default(), Accelerator::Tcg, false);
        assert!(
            line.contains("path=/,security_model=none,readonly=on"),
            "{line}"
        );
        assert_eq!(line.matches("path=/,").count(), 1);
    }

    #[test]
    fn a_comma_in_a_path_stays_part_of_the_path() {
        let line = line(&VmSpec::default(), Accelerator::Tcg, false);
        assert!(line.contains("path=/a,,b"), "{line}");
    }

    #[test]
    fn the_specification_reaches_the_command_line() {
        let spec = VmSpec {
            processors: Processors::cores(8),
            memory: "1G".to_owned(),
            cpu_model: Some("Skylake-Server".to_owned()),
            devices: vec!["-device".to_owned(), "intel-iommu".to_owned()],
            kernel_arguments: vec!["intel_iommu=on".to_owned()],
            nics: vec![Nic {
                netdev: "hubport,hubid=0".to_owned(),
                mac: "m".to_owned(),
            }],
            disks: vec!["/d,e".into()],
        };
        let line = line(&spec, Accelerator::Kvm, false);
        for part in [
            "-smp 8,sockets=1,cores=8,threads=1 -m 1G",
            "-accel kvm -cpu Skylake-Server",
            "-device intel-iommu",
            "loglevel=5 mitigations=off init_on_alloc=0 intel_iommu=on",
            "-netdev hubport,id=nic0,hubid=0 -device virtio-net-pci,netdev=nic0,mac=m,host_mtu=9000",
            "file=/d,,e -device virtio-blk-pci,drive=disk0",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
    }

    #[test]
    fn a_topology_names_its_nodes_with_their_cpus_and_memory() {
        let processors: Processors = "2x2x2".parse().unwrap();
        let spec = VmSpec {
            processors: processors.in_nodes(2).unwrap(),
            ..VmSpec::default()
        };
        let line = line(&spec, Accelerator::Tcg, false);
        for part in [
            "-smp 8,sockets=2,cores=2,threads=2 -m 4G",
            "memory-backend-ram,id=node0,size=2147483648 -numa node,nodeid=0,cpus=0-3,memdev=node0",
            "memory-backend-ram,id=node1,size=2147483648 -numa node,nodeid=1,cpus=4-7,memdev=node1",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        assert!(processors.in_nodes(3).is_err());
        for wrong in ["", "2", "2x2", "2x2x2x2", "0x1x1", "2xax2", "16x16x1"] {
            assert!(wrong.parse::<Processors>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn ctrl_c_goes_to_the_guest_only_when_it_has_the_terminal() {
        assert!(line(&VmSpec::default(), Accelerator::Tcg, true).contains("signal=off"));
        assert!(line(&VmSpec::default(), Accelerator::Tcg, false).contains("signal=on"));
    }
}
