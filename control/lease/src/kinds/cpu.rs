//! CPU cores: isolation class, execution mode and width, and the cpuset partition.

use alloc::{
    format,
    string::{String, ToString},
};

use fabricbios_wire::{
    CpuExecutionMode, CpuIsolationClass, CpuTerms, Effective, LeaseTerms, Refusal, ResourceType,
};

use super::{Grant, Rules};
use crate::{Profile, room::Holding, standing::invalid};

impl Rules for CpuTerms {
    /// A class that does not apply is refused, never softened (002 §3).
    fn foreign_to(&self, kind: ResourceType) -> String {
        let what = match self {
            Self {
                isolation: Some(class),
                ..
            } => self.class_name(*class as u8),
            Self {
                execution_mode: Some(_),
                ..
            } => "a cpu execution mode".into(),
            Self {
                execution_width: Some(_),
                ..
            } => "a cpu execution width".into(),
            _ => "a cpu partition".into(),
        };
        format!("{what} cannot be enforced for a lease of {kind}")
    }

    /// The lines of the bare-metal profile are those of the specification (004 §2).
    fn check(&self, capacity: u64, profile: Profile) -> Result<(), Refusal> {
        let width = u64::from(self.width());
        if self.execution_mode == Some(CpuExecutionMode::SingleThreaded) && width > 1 {
            return Err(invalid(format!(
                "execution mode single_threaded with execution_width={width}: one thread has width 1; ask for \
                 shared_memory, or leave the width out"
            )));
        }
        match profile {
            Profile::BareMetal if capacity > width => Err(invalid(format!(
                "wider CPU lease not accepted: capacity={capacity} execution_width={width}; use \
                 TLV_LEASE_CPU_ISOLATION to request isolation explicitly, or reduce capacity to match execution width."
            ))),
            Profile::BareMetal if capacity < width => Err(invalid(format!(
                "narrower CPU lease not accepted: capacity={capacity} execution_width={width}; raise capacity to \
                 match execution width."
            ))),
            Profile::BareMetal | Profile::Linux => Ok(()),
        }
    }

    fn keeps_contents(&self) -> bool {
        false
    }

    fn class(&self) -> Option<u8> {
        self.isolation.map(|class| class as u8)
    }

    fn class_name(&self, class: u8) -> String {
        let name = CpuIsolationClass::from_byte(class);
        let name = name.map_or_else(|| class.to_string(), |class| class.to_string());
        format!("cpu isolation {name}")
    }

    fn check_class(&self, class: u8) -> Result<(), Refusal> {
        match self.partition {
            Some(partition) if class == CpuIsolationClass::BestEffort as u8 => {
                Err(invalid(format!(
                    "partition {partition} cannot be had with {}: leases of this class share their CPUs",
                    self.class_name(class)
                )))
            }
            _ => Ok(()),
        }
    }

    fn holding(&self, class: Option<u8>) -> Holding {
        match class.and_then(CpuIsolationClass::from_byte) {
            Some(CpuIsolationClass::BestEffort) => Holding::Shared,
            Some(CpuIsolationClass::StrictIsolated) => Holding::AloneInOneNode,
            Some(CpuIsolationClass::WholeCore) | None => Holding::Alone,
        }
    }

    fn effective(&self) -> Effective {
        Effective {
            cpu_isolation: self.isolation,
            cpu_execution_mode: self.execution_mode,
            cpu_execution_width: self.execution_width,
            cpu_partition: self.partition,
            ..Effective::default()
        }
    }

    fn enforced(&self, grant: &Grant<'_>) -> LeaseTerms {
        let terms = Self {
            isolation: grant.class.and_then(CpuIsolationClass::from_byte),
            ..self.clone()
        };
        terms.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(mode: Option<CpuExecutionMode>, width: Option<u16>) -> CpuTerms {
        CpuTerms {
            execution_mode: mode,
            execution_width: width,
            ..CpuTerms::default()
        }
    }

    #[test]
    fn on_bare_metal_capacity_is_the_execution_width_and_the_line_is_that_of_the_specification() {
        let (none, shared) = (None, Some(CpuExecutionMode::SharedMemory));
        let why = |terms: CpuTerms, capacity| terms.check(capacity, Profile::BareMetal);
        for (fits, capacity) in [(terms(none, None), 1), (terms(shared, Some(4)), 4)] {
            assert_eq!(why(fits, capacity), Ok(()));
        }
        let wider = why(terms(none, None), 4).unwrap_err();
        assert_eq!(
            wider.message,
            "wider CPU lease not accepted: capacity=4 execution_width=1; use TLV_LEASE_CPU_ISOLATION to request \
             isolation explicitly, or reduce capacity to match execution width."
        );
        let isolated = CpuTerms {
            isolation: Some(CpuIsolationClass::WholeCore),
            ..CpuTerms::default()
        };
        assert_eq!(why(isolated, 4).unwrap_err(), wider);
        let narrower = why(terms(shared, Some(4)), 3).unwrap_err();
        assert!(narrower.message.starts_with("narrower CPU lease"));
        assert_eq!(terms(none, None).check(4, Profile::Linux), Ok(()));
        assert_eq!(terms(shared, Some(4)).check(3, Profile::Linux), Ok(()));
    }

    #[test]
    fn one_thread_has_width_one_under_every_profile() {
        for profile in [Profile::Linux, Profile::BareMetal] {
            let single = |width| terms(Some(CpuExecutionMode::SingleThreaded), width);
            assert_eq!(single(None).check(1, profile), Ok(()));
            assert_eq!(single(Some(1)).check(1, profile), Ok(()));
            let refusal = single(Some(2)).check(2, profile).unwrap_err();
            assert!(refusal.message.contains("single_threaded"), "{refusal:?}");
        }
    }
}
