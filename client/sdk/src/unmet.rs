//! Compares a lease with its request.

use std::fmt::Display;

use fabricbios_wire::{
    BlockTerms, CpuTerms, GpuExclusivityClass, GpuTerms, LeaseAllocRequest, LeaseInfo, LeaseTerms,
    NetTerms, Transport,
};

/// The parts of a request that its lease does not fulfil. An older node skips a constraint that it does not
/// know, and then does not echo it.
pub fn unmet(request: &LeaseAllocRequest, info: &LeaseInfo) -> Vec<String> {
    let mut missing = Missing(Vec::new());
    let amount = request.resource_type().amount(request.capacity);
    missing.need(
        info.capacity >= request.capacity,
        format!("capacity {amount}"),
    );
    let transport = Some(request.transport).filter(|it| *it != Transport::Auto);
    missing.asked("transport", transport, |it| {
        info.effective.transport == Some(it)
    });
    missing.need(
        !request.rotate_on_renew || info.effective.rotate_on_renew,
        "rotate-on-renew",
    );
    match &request.terms {
        LeaseTerms::Block(terms) => missing.of_blocks(terms, info),
        LeaseTerms::Cpu(terms) => missing.of_cores(terms, info),
        LeaseTerms::Net(terms) => missing.of_network_function(terms, request.capacity, info),
        LeaseTerms::Gpu(terms) => missing.of_gpu(terms, info),
        LeaseTerms::Mem(_) | LeaseTerms::Other(_) => {}
    }
    missing.0
}

struct Missing(Vec<String>);

impl Missing {
    fn need(&mut self, met: bool, what: impl Into<String>) {
        if !met {
            self.0.push(what.into());
        }
    }

    /// Needs `met` for the requested value, if there is one.
    fn asked<T: Copy + Display>(
        &mut self,
        name: &str,
        value: Option<T>,
        met: impl FnOnce(T) -> bool,
    ) {
        if let Some(value) = value {
            self.need(met(value), format!("{name} {value}"));
        }
    }

    /// The node does not echo the host as a constraint.
    fn of_blocks(&mut self, terms: &BlockTerms, info: &LeaseInfo) {
        let effective = &info.effective;
        self.need(!terms.read_only || effective.read_only, "read-only");
        self.need(
            !terms.mutual_auth || effective.mutual_auth,
            "mutual authentication",
        );
        if let (Some(wanted), Some(nvmeof)) = (&terms.host_nqn, info.binding.nvmeof()) {
            self.need(nvmeof.host_nqn == *wanted, format!("host {wanted}"));
        }
    }

    fn of_cores(&mut self, terms: &CpuTerms, info: &LeaseInfo) {
        let effective = &info.effective;
        self.asked("CPU isolation", terms.isolation, |class| {
            effective.cpu_isolation >= Some(class)
        });
        self.asked("execution mode", terms.execution_mode, |mode| {
            effective.cpu_execution_mode == Some(mode)
        });
        self.asked("execution width", terms.execution_width, |width| {
            effective.cpu_execution_width == Some(width)
        });
        self.asked("cpuset partition", terms.partition, |partition| {
            effective.cpu_partition == Some(partition)
        });
    }

    /// The binding has the settings that were applied. A rate that is only best-effort is no reason to give the lease
    /// back.
    fn of_network_function(&mut self, terms: &NetTerms, rate_bps: u64, info: &LeaseInfo) {
        let net = info.binding.net();
        let amount = info.resource_type().amount(rate_bps);
        self.need(
            net.is_some_and(|net| net.rate_bps >= rate_bps),
            format!("rate {amount}"),
        );
        self.asked("MAC address", terms.mac, |mac| {
            net.is_some_and(|net| net.mac == mac)
        });
        self.asked("VLAN", terms.vlan.map(u16::from), |vlan| {
            net.and_then(|net| net.vlan)
                .is_some_and(|got| got.get() == vlan)
        });
        self.asked("hand-over", terms.hand_over, |hand_over| {
            net.is_some_and(|net| net.hand_over == hand_over)
        });
    }

    fn of_gpu(&mut self, terms: &GpuTerms, info: &LeaseInfo) {
        let effective = &info.effective;
        self.asked("GPU exclusivity", terms.exclusivity, |class| {
            let got = effective.gpu_exclusivity;
            got.is_some_and(|got| is_as_tight(got, class))
        });
        self.asked("GPU execution mode", terms.execution_mode, |mode| {
            effective.gpu_execution_mode == Some(mode)
        });
        self.asked("GPU compute slices", terms.compute_slices, |slices| {
            effective.gpu_compute_slices >= Some(slices)
        });
    }
}

/// A higher class is tighter, except a partition, which is not comparable with a whole device.
fn is_as_tight(got: GpuExclusivityClass, wanted: GpuExclusivityClass) -> bool {
    got == wanted || (got > wanted && got != GpuExclusivityClass::PartitionExclusive)
}
