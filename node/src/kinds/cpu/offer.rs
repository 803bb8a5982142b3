//! The offer of the cores: their classes, and their entry in inventories.

use fabricbios_cpu::{Topology, list};
use fabricbios_lease::{ClassOffer, ClassState, OfferedClass};
use fabricbios_wire::{CpuCap, CpuIsolationClass, ResourceId, ResourceInventory, cpu_flags};

use super::detect::{CpuFound, NAME};
use crate::{
    inventory::{Described, ResourceStatus, describe, detection::Found},
    kinds::settings::Profile,
};

/// The classes, and why some are refused. No class is weakened: incomplete topology leaves only best_effort.
pub(super) fn classes(
    profile: Profile,
    default: CpuIsolationClass,
    topology: &Topology,
    not_exclusive: Option<&str>,
) -> ClassOffer {
    let whole = match (profile, topology.is_complete(), not_exclusive) {
        (Profile::BareMetal, ..) => {
            Some("a bare-metal node has no runtime that enforces it".into())
        }
        (_, false, _) => Some(format!(
            "the CPU topology is incomplete: {}",
            topology.faults.join("; ")
        )),
        (.., Some(why)) => Some(why.to_owned()),
        _ => None,
    };
    let strict = whole.clone().or_else(|| {
        let smt = topology.groups.iter().find(|group| group.cpus.len() > 1)?;
        Some(format!(
            "an online core has more than one online thread (CPUs {}); switch SMT off, and start the node again",
            list(&smt.cpus)
        ))
    });
    let class = |class: CpuIsolationClass, refused: Option<String>| OfferedClass {
        class: class as u8,
        state: match (class, refused) {
            (_, Some(why)) => ClassState::Refused(why),
            (CpuIsolationClass::BestEffort, None) => ClassState::BestEffort,
            (_, None) => ClassState::Enforced,
        },
    };
    ClassOffer {
        default: default as u8,
        classes: vec![
            class(CpuIsolationClass::BestEffort, None),
            class(CpuIsolationClass::WholeCore, whole),
            class(CpuIsolationClass::StrictIsolated, strict),
        ],
    }
}

/// Why requests that name no class are refused.
pub(super) fn default_refused(classes: &ClassOffer) -> Option<String> {
    let mut offered = classes.classes.iter();
    match &offered.find(|it| it.class == classes.default)?.state {
        ClassState::Refused(why) => Some(format!(
            "--cpu-isolation-policy: requests that name no class are refused: {why}"
        )),
        _ => None,
    }
}

/// The capacity in the unit of a request without a class: logical CPUs for best_effort, else cores.
pub(super) fn capacity(classes: &ClassOffer, cores: u16, cpus: usize) -> u64 {
    match classes.default == CpuIsolationClass::BestEffort as u8 {
        true => cpus as u64,
        false => cores.into(),
    }
}

/// The entry of the inventory: the cores that can be leased under the policy, 0 if its class is refused.
pub(super) fn cap(
    profile: Profile,
    found: &CpuFound,
    resource_id: ResourceId,
    groups: usize,
    classes: &ClassOffer,
) -> CpuCap {
    let can_be_had = |class: u8| {
        let of_class = |it: &&OfferedClass| it.class == class;
        let found = classes.classes.iter().find(of_class);
        found.is_some_and(|it| it.state.can_be_had())
    };
    let cores = match can_be_had(classes.default) {
        true => groups,
        false => 0,
    };
    let aware = match can_be_had(CpuIsolationClass::WholeCore as u8) {
        true => cpu_flags::TOPOLOGY_AWARE_LEASING,
        false => 0,
    };
    let rejects_wide = match profile {
        Profile::BareMetal => cpu_flags::REJECTS_WIDE_SINGLE_THREADED,
        Profile::Linux => 0,
    };
    let policy = (u32::from(classes.default) + 1) << cpu_flags::ISOLATION_SHIFT;
    let detected = found.cap(resource_id);
    CpuCap {
        cores: u16::try_from(cores).unwrap_or(u16::MAX),
        flags: detected.flags | aware | rejects_wide | policy,
        ..detected
    }
}

/// The entry in inventories.
#[derive(Debug)]
pub(super) struct OfferedCpus {
    pub(super) cap: CpuCap,
}

impl Described for OfferedCpus {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, found: &Found) {
        let id = self.cap.resource_id;
        inventory.cpu_caps.retain(|cap| cap.resource_id != id);
        inventory.cpu_caps.push(CpuCap {
            threads: found.of::<CpuFound>().next().map_or(0, CpuFound::threads),
            health: status.health(),
            ..self.cap
        });
        describe(inventory, status, NAME, &[]);
    }

    fn trouble(&self, found: &Found) -> Option<String> {
        let Some(cpu) = found.of::<CpuFound>().next() else {
            return Some("the CPU topology cannot be read".into());
        };
        let faults = &cpu.topology.faults;
        (!cpu.topology.is_complete())
            .then(|| format!("the CPU topology is incomplete: {}", faults.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_cpu::{CoreType, Group};

    use super::*;
    use crate::kinds::cpu::{CpuIsolationPolicy, CpuSettings};

    fn topology(cores: &[&[u32]]) -> Topology {
        let group = |cpus: &&[u32]| Group {
            number: cpus[0],
            cpus: cpus.to_vec(),
            package: Some(0),
            node: 0,
            core_type: CoreType::Capacity(1024),
        };
        Topology {
            online: cores.concat(),
            groups: cores.iter().map(group).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn capacity_counts_what_a_request_without_a_class_counts() {
        let smt = topology(&[&[2, 3], &[4, 5]]);
        let of = |policy| {
            let classes = classes(Profile::Linux, policy, &smt, None);
            capacity(&classes, 2, 4)
        };
        assert_eq!(of(CpuIsolationClass::BestEffort), 4);
        assert_eq!(of(CpuIsolationClass::WholeCore), 2);
    }

    #[test]
    fn shared_time_is_best_effort_and_cores_are_enforced() {
        let whole = CpuIsolationClass::WholeCore;
        let offer = classes(Profile::Linux, whole, &topology(&[&[2], &[3]]), None);
        let states: Vec<_> = offer.classes.into_iter().map(|it| it.state).collect();
        let enforced = ClassState::Enforced;
        assert_eq!(states, [ClassState::BestEffort, enforced.clone(), enforced]);
    }

    /// The text of each refusal, by class.
    fn refusals(profile: Profile, topology: &Topology, not_exclusive: Option<&str>) -> [String; 3] {
        let whole = CpuIsolationClass::WholeCore;
        let offer = classes(profile, whole, topology, not_exclusive);
        let why = |it: &OfferedClass| match &it.state {
            ClassState::Refused(why) => why.clone(),
            _ => String::new(),
        };
        let all: Vec<String> = offer.classes.iter().map(why).collect();
        all.try_into().unwrap()
    }

    #[test]
    fn a_class_that_cannot_be_enforced_is_refused_with_the_reason() {
        let linux = Profile::Linux;
        let plain = topology(&[&[0], &[1]]);
        assert_eq!(refusals(linux, &plain, None), ["", "", ""]);
        let smt = topology(&[&[0, 2], &[1]]);
        let [best_effort, whole, strict] = refusals(linux, &smt, None);
        assert_eq!((&*best_effort, &*whole), ("", ""));
        assert!(strict.contains("CPUs 0,2"), "{strict}");
        let mut holed = smt.clone();
        holed.online.push(9);
        holed.faults.push("logical CPU 9: no file".into());
        for (profile, topology, not_exclusive, text) in [
            (linux, &plain, Some("no cpuset.cpus.exclusive"), "no cpuset"),
            (linux, &holed, None, "logical CPU 9"),
            (Profile::BareMetal, &plain, None, "bare-metal"),
        ] {
            let [best_effort, whole, strict] = refusals(profile, topology, not_exclusive);
            assert_eq!(best_effort, "");
            assert!(
                whole.contains(text) && strict.contains(text),
                "{whole}, {strict}"
            );
        }
    }

    /// Cores and policy (class + 1) of the inventory entry, and its flags for topology-aware leasing and the refusal of
    /// wide leases.
    fn told(
        profile: Profile,
        policy: Option<CpuIsolationPolicy>,
        topology: Topology,
    ) -> (u16, u32, bool, bool) {
        let settings = CpuSettings {
            cpu_isolation_policy: policy,
            ..CpuSettings::default()
        };
        let classes = classes(profile, settings.policy(profile), &topology, None);
        let found = CpuFound {
            topology,
            max_mhz: 0,
            arch_flags: 0,
        };
        let cap = cap(profile, &found, ResourceId(1), 3, &classes);
        (
            cap.cores,
            cap.flags >> cpu_flags::ISOLATION_SHIFT & 0b111,
            cap.flags & cpu_flags::TOPOLOGY_AWARE_LEASING != 0,
            cap.flags & cpu_flags::REJECTS_WIDE_SINGLE_THREADED != 0,
        )
    }

    #[test]
    fn the_cores_in_the_inventory_are_those_that_the_policy_can_lease() {
        let linux = |policy, topology| told(Profile::Linux, policy, topology);
        let smt = || topology(&[&[0, 2], &[1]]);
        assert_eq!(linux(None, smt()), (3, 2, true, false));
        let strict = Some(CpuIsolationPolicy::Strict);
        assert_eq!(linux(strict, smt()), (0, 3, true, false));
        assert_eq!(linux(strict, topology(&[&[0], &[1]])), (3, 3, true, false));
        let mut holed = smt();
        holed.online.push(9);
        assert_eq!(linux(None, holed.clone()), (0, 2, false, false));
        let best_effort = Some(CpuIsolationPolicy::BestEffort);
        assert_eq!(linux(best_effort, holed), (3, 1, false, false));
        assert_eq!(told(Profile::BareMetal, None, smt()), (3, 1, false, true));
    }
}
