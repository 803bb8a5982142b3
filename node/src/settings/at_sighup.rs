//! Which settings a daemon that runs takes over from its configuration file at SIGHUP.

use std::collections::BTreeMap;

use clap::{ArgMatches, parser::ValueSource};

use super::Settings;

/// Every other setting changes at the next start. In the order of the alphabet; docs/operate.md has the same names.
pub const AT_SIGHUP: &[&str] = &[
    "block-per-tenant-max",
    "connections-max",
    "connections-per-source-max",
    "connections-per-tenant-max",
    "cpu-per-tenant-max",
    "gpu-per-tenant-max",
    "grace-secs-max",
    "lease-secs-max",
    "leases-per-tenant-max",
    "log-level",
    "mem-per-tenant-max",
    "net-mac",
    "net-per-tenant-max",
    "net-vlan",
    "nvme-host",
    "on-stop",
    "queue-pairs-per-tenant-max",
    "requests-per-tenant-max",
    "tenant-uid",
];

/// The settings that the operator has given, by their names, with their values as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(BTreeMap<String, Vec<String>>);

/// What is different in settings that were read again: names of settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// These hold from now on.
    pub(crate) now: Vec<String>,
    /// These change at the next start.
    pub(crate) later: Vec<String>,
}

impl Given {
    /// The values of this command line, and no defaults.
    pub(super) fn of(matches: &ArgMatches) -> Self {
        // The matches have also groups, which are no settings.
        let settings = Settings::arguments();
        let given = settings.get_arguments().filter_map(|setting| {
            let id = setting.get_id().as_str();
            let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
            let values = matches.get_raw(id)?;
            let values = values.map(|it| it.to_string_lossy().into_owned());
            is_given.then(|| (id.replace('_', "-"), values.collect()))
        });
        Self(given.collect())
    }

    /// With the values of `flags` in the place of those of the file.
    pub(super) fn overridden_by(&mut self, flags: Self) {
        self.0.extend(flags.0);
    }

    /// Takes over the values that hold from now on. The others stay, so that the next reading says again what is
    /// different from what runs.
    pub(crate) fn take_over(&mut self, new: &Self) -> Difference {
        let names = self.0.keys().chain(new.0.keys());
        let mut names: Vec<String> = names.cloned().collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| self.0.get(name) != new.0.get(name));
        let (now, later): (Vec<_>, Vec<_>) = names
            .into_iter()
            .partition(|name| AT_SIGHUP.contains(&name.as_str()));
        for name in &now {
            match new.0.get(name) {
                Some(values) => self.0.insert(name.clone(), values.clone()),
                None => self.0.remove(name),
            };
        }
        Difference { now, later }
    }
}
