//! `--tenant-uid`: which users of this machine belong to which tenant.

use std::str::FromStr;

use fabricbios_fabric::is_tenant_key;

use super::values::BadValue;

/// A user of this machine that belongs to a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUid {
    pub(crate) tenant: String,
    pub(crate) uid: u32,
}

const FORM: &str = "not NAME=UID, such as blue=1000: the name of a tenant, and the number of a user of this machine";

impl FromStr for TenantUid {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::Other(text.to_owned(), FORM);
        let (tenant, uid) = text.split_once('=').ok_or_else(bad)?;
        let uid: u32 = uid.parse().map_err(|_not_a_number| bad())?;
        // chown(2) and other calls use the last number for "no user".
        if !is_tenant_key(tenant) || uid == u32::MAX {
            return Err(bad());
        }
        let tenant = tenant.to_owned();
        Ok(Self { tenant, uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_and_the_number_of_a_user() {
        let tenant = "blue".to_owned();
        assert_eq!("blue=1000".parse(), Ok(TenantUid { tenant, uid: 1000 }));
        for wrong in [
            "",
            "blue",
            "blue=",
            "=1000",
            "Blue=1000",
            "blue=-1",
            "blue=4294967295",
            "blue=anna",
            "blue=1000=1",
        ] {
            assert!(wrong.parse::<TenantUid>().is_err(), "{wrong}");
        }
    }
}
