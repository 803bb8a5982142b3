//! The logical CPUs of a machine and its physical cores, from sysfs.
//!
//! A *group* is a physical core: its online logical CPUs, which are SMT siblings. An offline sibling is in no group,
//! because it runs nothing. If it comes online later, the group has changed, and no exclusive lease gets the group
//! until the node is started again.
//!
//! A hybrid machine has cores of several types. A node offers one type only: leases count cores, so all cores of a
//! lease must be equally fast. See [`Topology::select`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use fabricbios_kernfs::{Error, Tree, parse_list};

use crate::list;

const CPUS: &str = "devices/system/cpu";
const NODES: &str = "devices/system/node";

/// The cores of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Online logical CPUs, ascending.
    pub online: Vec<u32>,
    /// Logical CPUs that the kernel knows and that are offline.
    pub offline: Vec<u32>,
    /// Online CPUs that the kernel keeps free of tasks since its start (`isolcpus`).
    pub isolated: Vec<u32>,
    /// The groups whose members agree about the group, ordered by number.
    pub groups: Vec<Group>,
    /// The reasons why online CPUs are in no group.
    pub faults: Vec<String>,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of the group's first CPU.
    pub number: u32,
    /// Its online logical CPUs, ascending.
    pub cpus: Vec<u32>,
    /// Its package (socket), if sysfs has it.
    pub package: Option<i32>,
    /// Its NUMA node; 0 on a kernel without NUMA.
    pub node: u32,
    /// Its type.
    pub core_type: CoreType,
}

/// The type of a core on a hybrid machine, ordered from slow to fast. On other machines all cores have one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoreType {
    /// Intel, `/sys/devices/cpu_lowpower`.
    LowPower,
    /// Intel, `/sys/devices/cpu_atom`.
    Atom,
    /// Intel, `/sys/devices/cpu_core`.
    Core,
    /// The kernel's `cpu_capacity`; the fastest core has 1024.
    Capacity(u32),
}

impl fmt::Display for CoreType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LowPower => f.write_str("cpu_lowpower"),
            Self::Atom => f.write_str("cpu_atom"),
            Self::Core => f.write_str("cpu_core"),
            Self::Capacity(capacity) => write!(f, "cpu_capacity {capacity}"),
        }
    }
}

impl Group {
    /// Checks that the same CPUs of the group are online as at the start.
    ///
    /// # Errors
    /// Others were online then, or sysfs cannot be read.
    pub fn check(&self, sys: &Tree) -> Result<(), CoreFault> {
        let online = online(sys)?;
        let mut now = BTreeSet::new();
        for cpu in self.cpus.iter().filter(|cpu| online.contains(cpu)) {
            now.extend(siblings(sys, *cpu, &online)?);
        }
        let was: BTreeSet<u32> = self.cpus.iter().copied().collect();
        let came = (&now - &was).into_iter().map(|cpu| (cpu, "online"));
        let went = (&was - &now).into_iter().map(|cpu| (cpu, "offline"));
        match came.chain(went).next() {
            Some((cpu, state)) => Err(CoreFault::Changed(cpu, self.number, state)),
            None => Ok(()),
        }
    }
}

/// Logical CPUs in the form that an operator writes, such as `2-7,10`; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

/// The CPUs that an operator offers: `all`, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All CPUs that can be leased.
    All,
    /// These logical CPUs.
    These(CpuList),
}

/// The text that is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no ascending list of CPUs, such as 2-7,10")]
pub struct NotCpus(String);

/// Why the CPUs in the settings cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum NotOffered {
    /// These CPUs are offline, or the machine has none with these numbers.
    #[error("CPUs {} are not online", list(.0))]
    Offline(Vec<u32>),
    /// The kernel keeps these CPUs free of tasks.
    #[error("CPUs {} are isolated by the kernel since its start (isolcpus)", list(.0))]
    Isolated(Vec<u32>),
    /// The CPUs of a core, and those of them that are not named.
    #[error("CPUs {} are one core: name {} too, or none of them", list(.0), list(.1))]
    Part(Vec<u32>, Vec<u32>),
    /// Each type with its CPUs.
    #[error("the cores are of several types ({0}): offer one type")]
    Mixed(String),
}

/// Why a core that was offered cannot be leased now.
#[derive(Debug, thiserror::Error)]
pub enum CoreFault {
    /// The machine: sysfs cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Error),
    /// The operator: this CPU of this core has come online or gone offline.
    #[error(
        "core {1} has changed since the start of the node: cpu{0} is {2} now; change it back, or start the node again"
    )]
    Changed(u32, u32, &'static str),
    /// The operator: these CPUs are one core; the last number is one to take offline.
    #[error(
        "strict_isolated needs cores with one online thread each, and the CPUs {0} of one core are online: take cpu{1} \
         offline, or switch SMT off"
    )]
    SeveralThreads(String, u32),
}

impl CoreFault {
    /// The error number, if a system call failed.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Unreadable(error) => error.errno(),
            _ => None,
        }
    }
}

impl FromStr for CpuList {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        match parse_list(text) {
            Some(cpus) if !cpus.is_empty() => Ok(Self(cpus)),
            _ => Err(NotCpus(text.to_owned())),
        }
    }
}

impl FromStr for Wanted {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        match text {
            "all" => Ok(Self::All),
            list => list.parse().map(Self::These),
        }
    }
}

impl Topology {
    /// Reads the topology from `/sys`.
    ///
    /// # Errors
    /// The online CPUs cannot be read. Everything else that is missing or contradictory becomes a fault.
    pub fn read(sys: &Tree) -> Result<Self, Error> {
        let online = sys.read_list(format!("{CPUS}/online"))?;
        let listed = |name: &str| sys.read_list(format!("{CPUS}/{name}")).unwrap_or_default();
        let is_online: BTreeSet<u32> = online.iter().copied().collect();
        let mut offline = listed("possible");
        offline.retain(|cpu| !is_online.contains(cpu));
        let mut isolated = listed("isolated");
        isolated.retain(|cpu| is_online.contains(cpu));
        let mut faults = Vec::new();
        let groups = groups(sys, &is_online, &mut faults);
        Ok(Self {
            online,
            offline,
            isolated,
            groups,
            faults,
        })
    }

    /// Whether every online CPU is in a group. If not, no lease gets whole cores.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.groups.iter().map(|it| it.cpus.len()).sum::<usize>() == self.online.len()
    }

    /// The highest frequency in MHz. `None`: no CPU has a frequency driver, as on most virtual machines; that is no
    /// fault.
    #[must_use]
    pub fn max_mhz(&self, sys: &Tree) -> Option<u32> {
        let max_khz = |cpu| sys.read_as::<u32>(format!("{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"));
        let known = self.online.iter().filter_map(|cpu| max_khz(cpu).ok());
        known.max().map(|khz| khz / 1000)
    }

    /// The groups to offer, all of one type, without the groups of the boot CPU and of the reserved CPUs. `all` means
    /// the fastest type, without CPUs that are isolated since boot. CPUs in `held`, which leases of an earlier run
    /// have, do not count as isolated. With an incomplete topology, each CPU without a group becomes its own group.
    ///
    /// # Errors
    /// A named CPU is not online or is isolated, the named CPUs are of several types, or only a part of a core is
    /// named.
    pub fn select(
        &self,
        wanted: &Wanted,
        reserve: &[u32],
        held: &BTreeSet<u32>,
    ) -> Result<Vec<Group>, NotOffered> {
        let boot = self.online.first().copied().into_iter();
        let kept: BTreeSet<u32> = boot.chain(reserve.iter().copied()).collect();
        let isolated: BTreeSet<u32> = self.isolated.iter().copied().collect();
        let isolated: BTreeSet<u32> = &isolated - held;
        let mut groups = self.all_groups();
        groups.retain(|group| group.cpus.iter().all(|cpu| !kept.contains(cpu)));
        match wanted {
            Wanted::All => {
                groups.retain(|group| group.cpus.iter().all(|cpu| !isolated.contains(cpu)));
                let fastest = groups.iter().map(|group| group.core_type).max();
                groups.retain(|group| Some(group.core_type) == fastest);
            }
            Wanted::These(CpuList(named)) => {
                let named: BTreeSet<u32> = named.iter().copied().collect();
                let online: BTreeSet<u32> = self.online.iter().copied().collect();
                refuse_any(&named - &online, NotOffered::Offline)?;
                refuse_any(&named & &isolated, NotOffered::Isolated)?;
                groups.retain(|group| group.cpus.iter().any(|cpu| named.contains(cpu)));
                for group in &groups {
                    let left_out = group.cpus.iter().filter(|cpu| !named.contains(cpu));
                    let left_out: Vec<u32> = left_out.copied().collect();
                    if !left_out.is_empty() {
                        return Err(NotOffered::Part(group.cpus.clone(), left_out));
                    }
                }
                refuse_mixed(&groups)?;
            }
        }
        Ok(groups)
    }

    fn all_groups(&self) -> Vec<Group> {
        let mut groups = self.groups.clone();
        let grouped: BTreeSet<u32> = groups.iter().flat_map(|it| it.cpus.clone()).collect();
        let alone = self.online.iter().filter(|cpu| !grouped.contains(cpu));
        groups.extend(alone.map(|&cpu| Group {
            number: cpu,
            cpus: vec![cpu],
            package: None,
            node: 0,
            core_type: CoreType::Capacity(1024),
        }));
        groups.sort_unstable_by_key(|it| it.number);
        groups
    }
}

fn refuse_any(cpus: BTreeSet<u32>, why: fn(Vec<u32>) -> NotOffered) -> Result<(), NotOffered> {
    match cpus.is_empty() {
        true => Ok(()),
        false => Err(why(cpus.into_iter().collect())),
    }
}

fn refuse_mixed(groups: &[Group]) -> Result<(), NotOffered> {
    let mut by_type: BTreeMap<CoreType, Vec<u32>> = BTreeMap::new();
    for group in groups {
        by_type
            .entry(group.core_type)
            .or_default()
            .extend(&group.cpus);
    }
    if by_type.len() < 2 {
        return Ok(());
    }
    let types = by_type
        .iter()
        .map(|(kind, cpus)| format!("{kind}: {}", list(cpus)));
    let types: Vec<String> = types.collect();
    Err(NotOffered::Mixed(types.join("; ")))
}

/// Finds the groups. All members of a group must name the same siblings, package, node and type: otherwise a lease
/// could get a core without one of its CPUs.
fn groups(sys: &Tree, online: &BTreeSet<u32>, faults: &mut Vec<String>) -> Vec<Group> {
    let nodes = nodes(sys, faults);
    let types = types(sys);
    let mut claimed: BTreeMap<Vec<u32>, Vec<Group>> = BTreeMap::new();
    for &cpu in online {
        let topology = format!("{CPUS}/cpu{cpu}/topology");
        let cpus = match siblings(sys, cpu, online) {
            Ok(cpus) => cpus,
            Err(error) => {
                faults.push(format!("logical CPU {cpu}: {error}"));
                continue;
            }
        };
        let node = match &nodes {
            Some(nodes) => nodes.get(&cpu).copied(),
            None => Some(0),
        };
        let Some(node) = node else {
            faults.push(format!(
                "logical CPU {cpu}: it is in no NUMA node of {NODES}"
            ));
            continue;
        };
        let capacity = sys.read_as(format!("{CPUS}/cpu{cpu}/cpu_capacity"));
        let capacity = CoreType::Capacity(capacity.unwrap_or(1024));
        claimed.entry(cpus.clone()).or_default().push(Group {
            number: cpu,
            cpus,
            package: sys.read_as(format!("{topology}/physical_package_id")).ok(),
            node,
            core_type: types.get(&cpu).copied().unwrap_or(capacity),
        });
    }
    let mut whole = Vec::new();
    for (cpus, members) in claimed {
        let names: Vec<u32> = members.iter().map(|it| it.number).collect();
        let place = |it: &Group| (it.package, it.node, it.core_type);
        let agree = members.windows(2).all(|it| place(&it[0]) == place(&it[1]));
        match members.into_iter().next() {
            Some(first) if agree && cpus == names => whole.push(first),
            _ if cpus != names => {
                faults.push(format!("CPUs {names:?} say that their core is {cpus:?}"));
            }
            _ => faults.push(format!(
                "CPUs {names:?} are one core and name several packages, nodes or types"
            )),
        }
    }
    whole.sort_unstable_by_key(|it| it.number);
    whole
}

/// Checks that each core of the machine has at most one online CPU, as `strict_isolated` leases need.
///
/// # Errors
/// A core has more online CPUs, or sysfs cannot be read.
pub(crate) fn check_single_threads(sys: &Tree) -> Result<(), CoreFault> {
    let online = online(sys)?;
    for &cpu in &online {
        let cpus = siblings(sys, cpu, &online)?;
        if let Some(second) = cpus.iter().copied().find(|it| *it != cpu) {
            return Err(CoreFault::SeveralThreads(list(&cpus), second));
        }
    }
    Ok(())
}

fn online(sys: &Tree) -> Result<BTreeSet<u32>, Error> {
    let online = sys.read_list(format!("{CPUS}/online"))?;
    Ok(online.into_iter().collect())
}

/// The online CPUs of the core that has this CPU.
fn siblings(sys: &Tree, cpu: u32, online: &BTreeSet<u32>) -> Result<Vec<u32>, Error> {
    let mut cpus = sys.read_list(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"))?;
    cpus.retain(|it| online.contains(it));
    Ok(cpus)
}

/// The NUMA node of each CPU; `None` on a kernel without NUMA.
fn nodes(sys: &Tree, faults: &mut Vec<String>) -> Option<BTreeMap<u32, u32>> {
    let names = sys.list(NODES).ok()?;
    let mut nodes = BTreeMap::new();
    for name in names {
        let number = name.strip_prefix("node").and_then(|it| it.parse().ok());
        let Some(number) = number else { continue };
        match sys.read_list(format!("{NODES}/{name}/cpulist")) {
            Ok(cpus) => nodes.extend(cpus.into_iter().map(|cpu| (cpu, number))),
            Err(error) => faults.push(format!("NUMA node {number}: {error}")),
        }
    }
    Some(nodes)
}

/// The type of each CPU of a hybrid Intel machine.
fn types(sys: &Tree) -> BTreeMap<u32, CoreType> {
    let known = [
        ("cpu_lowpower", CoreType::LowPower),
        ("cpu_atom", CoreType::Atom),
        ("cpu_core", CoreType::Core),
    ];
    let of = |(name, kind)| {
        let cpus = sys.read_list(format!("devices/{name}/cpus"));
        cpus.unwrap_or_default()
            .into_iter()
            .map(move |cpu| (cpu, kind))
    };
    known.into_iter().flat_map(of).collect()
}
