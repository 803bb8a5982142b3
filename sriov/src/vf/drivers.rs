//! The drivers of cards whose virtual functions are leased.

/// A driver of cards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    /// Its name.
    pub(super) card: &'static str,
    /// The driver of its virtual functions.
    pub(super) function: &'static str,
    /// Whether a measurement showed that an accepted rate is the rate on the wire.
    pub(super) shapes: bool,
    /// Whether a test showed that the card drops frames that a tenant without a VLAN has tagged itself.
    pub(super) drops_tags: bool,
    /// Whether a test showed that switching bus mastering off stops every frame of a virtual function at once and for
    /// good. Other drivers may switch it on again in a reset (`pci_set_master` in ixgbevf and iavf), which a tenant can
    /// request. So the proof of a cut unbinds them.
    pub(super) is_cut_by_bus_master: bool,
}

const DRIVERS: &[Driver] = &[
    // Measured with QEMU's card: the driver reports the new rate, and the card sends as fast as before.
    known("igb", "igbvf", true),
    known("ixgbe", "ixgbevf", false),
    known("i40e", "iavf", false),
    known("ice", "iavf", false),
    known("mlx5_core", "mlx5_core", false),
    known("bnxt_en", "bnxt_en", false),
];

const fn known(card: &'static str, function: &'static str, is_cut_by_bus_master: bool) -> Driver {
    Driver {
        card,
        function,
        // No driver has passed a measurement of rates yet.
        shapes: false,
        // QEMU's card sends such frames, with any tag.
        drops_tags: false,
        is_cut_by_bus_master,
    }
}

pub(super) fn find(card: &str) -> Option<Driver> {
    let mut found = DRIVERS.iter().find(|it| it.card == card).copied();
    // Test hook: treats this driver of cards as untested. Only in debug builds.
    if cfg!(debug_assertions)
        && std::env::var("FABRICBIOS_UNCHECKED_DRIVER").is_ok_and(|it| it == card)
    {
        found = found.map(|it| Driver {
            is_cut_by_bus_master: false,
            ..it
        });
    }
    found
}

/// The names of all known drivers, for an error.
pub(super) fn names() -> String {
    let names: Vec<&str> = DRIVERS.iter().map(|it| it.card).collect();
    names.join(", ")
}

impl Driver {
    /// Why each lease needs a VLAN, for people. `None`: a lease may be untagged.
    pub(super) fn needs_vlan(&self) -> Option<String> {
        let why = format!(
            "with {} it was not seen that the card drops frames that a tenant has tagged itself",
            self.card
        );
        (!self.drops_tags).then_some(why)
    }

    /// The limits that the node does not enforce with this driver, for people.
    pub(super) fn degraded(&self) -> String {
        // No driver has passed a test of this yet. QEMU's card accepts the setting and sends frames with any address.
        let mut why = vec![format!(
            "with {} it was not seen that the card drops frames with a foreign source address",
            self.card
        )];
        if !self.shapes {
            why.push(format!(
                "{} takes the rate of a virtual function and was not measured to keep it: rates are best effort",
                self.card
            ));
        }
        if !self.is_cut_by_bus_master {
            why.push(format!(
                "with {} it was not tried that a function without bus mastering sends nothing more",
                self.card
            ));
        }
        why.join("; ")
    }
}
