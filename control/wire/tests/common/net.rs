//! Network functions.

use fabricbios_wire::*;
use proptest::{option, prelude::*, sample::select};

use super::numbers;

pub(super) fn terms() -> impl Strategy<Value = NetTerms> {
    let hand_over = option::of(select(HandOver::ALL));
    (option::of(mac()), option::of(vlan()), hand_over).prop_map(|(mac, vlan, hand_over)| NetTerms {
        mac,
        vlan,
        hand_over,
    })
}

pub(super) fn coordinates() -> impl Strategy<Value = NetBinding> {
    let function =
        (any::<(u16, u8)>(), 0..32u8, 0..8u8).prop_map(|((domain, bus), device, function)| {
            PciFunction {
                domain,
                bus,
                device,
                function,
            }
        });
    let place = (
        option::of(function),
        option::of("[a-z][!-.0-9;-~]{0,14}"),
        mac(),
        option::of(vlan()),
    );
    let how = (
        1..=u64::MAX,
        select(HandOver::ALL),
        option::of(any::<u32>()),
        option::of("[!-~]{1,128}"),
    );
    (place, how).prop_map(|(place, how)| NetBinding {
        pci_function: place.0,
        interface: place.1,
        mac: place.2,
        vlan: place.3,
        rate_bps: how.0,
        hand_over: how.1,
        vfio_group: how.2,
        cdi_device: how.3,
    })
}

fn mac() -> impl Strategy<Value = MacAddress> {
    any::<[u8; 6]>()
        .prop_map(MacAddress)
        .prop_filter("of one interface", |mac| mac.is_of_one_interface())
}

fn vlan() -> impl Strategy<Value = VlanId> {
    (1..=4_094u16).prop_filter_map("in range", VlanId::new)
}

pub(super) fn entry() -> impl Strategy<Value = NicInfo> {
    numbers().prop_map(
        |(resource_id, (speed_bps, _), (mtu, flags, health, _))| NicInfo {
            resource_id,
            speed_bps,
            mtu,
            flags,
            health,
        },
    )
}
