//! The cases of each kind of resource, and the values that they are made of.

pub(crate) mod block;
pub(crate) mod cpu;
pub(crate) mod gpu;
pub(crate) mod mem;
pub(crate) mod net;

use fabricbios_wire::*;

use super::{
    answers::{answer, with_more},
    bad_answers::damaged_lease,
    bad_tlvs::bad_tlv,
    tlvs::params,
    *,
};
use crate::samples::{self, LEASE, full_lease, gid, lease};

macro_rules! of_kinds {
    ($({ $code:literal $variant:ident $word:literal $name:literal, ($module:ident: $terms:ty), $coordinates:tt })*) => {
        pub(crate) fn cases(c: &mut Vec<Case>) {
            $($module::cases(c);)*
        }
    };
}

fabricbios_wire::kinds!(of_kinds);
