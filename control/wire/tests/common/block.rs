//! Block storage.

use fabricbios_wire::*;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{endpoint, numbers};

pub(super) fn terms() -> impl Strategy<Value = BlockTerms> {
    (
        any::<(bool, bool)>(),
        option::of(nqn()),
        option::of(host_id()),
    )
        .prop_map(|((read_only, mutual_auth), host_nqn, host_id)| BlockTerms {
            read_only,
            host_nqn,
            host_id,
            mutual_auth,
        })
}

pub(super) fn coordinates() -> impl Strategy<Value = NvmeofBinding> {
    let address = (select(NvmeofTransport::ALL), endpoint()).prop_map(|(transport, endpoint)| {
        NvmeofAddress {
            transport,
            endpoint,
        }
    });
    let place = (
        vec(address, 1..=NVMEOF_ADDRESSES_MAX),
        nqn(),
        1..u32::MAX,
        (9..=16u32).prop_map(|bits| 1 << bits),
    );
    let host = (nqn(), host_id(), secret(), option::of(secret()));
    let loss = 0..=NVMEOF_CTRL_LOSS_SECS_MAX;
    (place, host, loss).prop_map(|(place, host, ctrl_loss_secs)| NvmeofBinding {
        addresses: place.0,
        subsystem: place.1,
        nsid: place.2,
        host_nqn: host.0,
        host_id: host.1,
        dhchap_secret: host.2,
        dhchap_ctrl_secret: host.3,
        ctrl_loss_secs,
        block_bytes: place.3,
    })
}

fn nqn() -> impl Strategy<Value = Nqn> {
    "nqn\\.[0-9]{4}-(0[1-9]|1[0-2])\\.[a-z0-9][a-zA-Z0-9._:+=@-]{0,210}"
        .prop_map(|text| text.parse().expect("the pattern is that of a name"))
}

fn host_id() -> impl Strategy<Value = HostId> {
    (1..=u128::MAX).prop_map(|id| HostId(id.to_be_bytes()))
}

fn secret() -> impl Strategy<Value = DhchapSecret> {
    "DHHC-1:0[0-3]:[A-Za-z0-9+/]{1,110}=?:"
        .prop_map(|text| DhchapSecret::new(&text).expect("the pattern is that of a secret"))
}

pub(super) fn entry() -> impl Strategy<Value = BlockDev> {
    numbers().prop_map(
        |(resource_id, (capacity, _), (block_size, flags, health, _))| BlockDev {
            resource_id,
            block_size,
            capacity,
            flags,
            health,
        },
    )
}
