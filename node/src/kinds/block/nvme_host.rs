//! `--nvme-host`: which tenant may name which NVMe host.
//!
//! Without this setting a host belongs to the first tenant that names it.

use std::str::FromStr;

use fabricbios_wire::{BlockTerms, Nqn};

use crate::kinds::settings::values::BadValue;

/// A host that only this tenant may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeHost {
    nqn: Nqn,
    tenant: String,
}

impl NvmeHost {
    /// True if another tenant names this host, by its NQN or by the host id in the NQN.
    fn is_taken_by(&self, tenant: &str, terms: &BlockTerms) -> bool {
        let its_id = self.nqn.uuid();
        let by_name = terms.host_nqn.as_ref() == Some(&self.nqn);
        // A host without an explicit id has its id in the NQN, in any spelling.
        let named = terms.host_nqn.as_ref().and_then(Nqn::uuid);
        let by_id = its_id.is_some() && terms.host_id.or(named) == its_id;
        (by_name || by_id) && tenant != self.tenant
    }
}

/// A tenant named the host of another one, which the refusal does not name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not for this tenant to name: leave --hostnqn and --hostid out, or ask the node's operator, who says with \
     --nvme-host whose it is"
)]
pub(crate) struct TakenHost(Nqn);

/// Refuses a host of another tenant.
pub(crate) fn refuse_taken(
    hosts: &[NvmeHost],
    tenant: &str,
    terms: &BlockTerms,
) -> Result<(), TakenHost> {
    match hosts.iter().find(|host| host.is_taken_by(tenant, terms)) {
        Some(host) => Err(TakenHost(host.nqn.clone())),
        None => Ok(()),
    }
}

const FORM: &str = "not HOSTNQN=TENANT, such as nqn.2014-08.org.example:host1=blue";

impl FromStr for NvmeHost {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue::Other(text.to_owned(), FORM);
        // An NQN may contain `=`.
        let (nqn, tenant) = text.rsplit_once('=').ok_or_else(bad)?;
        let nqn = nqn.parse().map_err(|_not_an_nqn| bad())?;
        let tenant = tenant.to_owned();
        match tenant.is_empty() {
            true => Err(bad()),
            false => Ok(Self { nqn, tenant }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

    fn terms(host_nqn: Option<&str>) -> BlockTerms {
        BlockTerms {
            host_nqn: host_nqn.map(|it| it.parse().unwrap()),
            ..BlockTerms::default()
        }
    }

    #[test]
    fn only_its_tenant_names_a_host() {
        let hosts = [format!("{NQN}=blue").parse().unwrap()];
        refuse_taken(&hosts, "blue", &terms(Some(NQN))).unwrap();
        refuse_taken(&hosts, "red", &terms(None)).unwrap();
        refuse_taken(&hosts, "red", &terms(Some("nqn.2014-08.org.example:other"))).unwrap();
        let error = refuse_taken(&hosts, "red", &terms(Some(NQN))).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("operator") && !error.contains("blue"),
            "{error}"
        );
    }

    #[test]
    fn nor_does_anybody_else_take_its_id() {
        let hosts = [format!("{NQN}=blue").parse().unwrap()];
        let by_id = BlockTerms {
            host_id: NQN.parse::<Nqn>().unwrap().uuid(),
            ..terms(Some("nqn.2014-08.org.example:other"))
        };
        refuse_taken(&hosts, "red", &by_id).unwrap_err();
        refuse_taken(&hosts, "blue", &by_id).unwrap();
    }

    #[test]
    fn nor_does_another_spelling_of_its_id() {
        let hosts = [format!("{}=blue", NQN.replace("11111111", "abcdefab"))];
        let hosts = hosts.map(|text| text.parse().unwrap());
        let capitals = NQN.replace("11111111", "ABCDEFAB");
        refuse_taken(&hosts, "red", &terms(Some(&capitals))).unwrap_err();
    }

    #[test]
    fn a_name_and_a_tenant() {
        for text in [
            "",
            "blue",
            "=blue",
            "nqn.2014-08.org.example:a",
            "nqn.2014-08.org.example:a=",
        ] {
            assert!(text.parse::<NvmeHost>().is_err(), "{text}");
        }
        let host: NvmeHost = "nqn.2014-08.org.example:a=b=red".parse().unwrap();
        assert_eq!(host.tenant, "red");
    }
}
