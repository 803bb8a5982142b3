//! Settings that contradict each other or have no effect, named as the operator gave each.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    hash::Hash,
    path::{Path, PathBuf},
};

/// Settings with which no node starts. The operator gave them: each is named as a flag, or as a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A setting has no effect.
    #[error("{given} without {needed}: {why}; give that too, or leave this out")]
    NoEffect {
        /// The setting.
        given: String,
        /// The setting that is missing.
        needed: &'static str,
        /// What is missing without it.
        why: &'static str,
    },
    /// The values of one setting do not go together.
    #[error("{setting} {why}")]
    Values {
        /// The setting.
        setting: String,
        /// What is wrong with them, and what to do.
        why: String,
    },
    /// A setting contradicts another one.
    #[error("{one} with {other}: {why}")]
    Both {
        /// The setting and its value.
        one: String,
        /// The other one and its value.
        other: String,
        /// The contradiction, and what to do.
        why: String,
    },
    /// Two sockets have the same address.
    #[error("{one} and {other} are the same address: give one of them another port")]
    Address {
        /// The setting and the address of one socket.
        one: String,
        /// The same of the other one.
        other: String,
    },
}

/// What contradicts each other in the settings.
#[derive(Debug)]
pub struct Conflicts<'a> {
    /// The configuration file; `None`: every setting is a flag.
    file: Option<&'a Path>,
    /// The number of the line of each setting in the file.
    lines: &'a BTreeMap<String, usize>,
    pub(crate) found: Vec<Conflict>,
}

impl<'a> Conflicts<'a> {
    pub(crate) fn new(file: Option<&'a Path>, lines: &'a BTreeMap<String, usize>) -> Self {
        Self {
            file,
            lines,
            found: Vec::new(),
        }
    }

    /// The setting of this name in the operator's notation: a flag, or a line of the file.
    pub(crate) fn named(&self, name: &str) -> String {
        match (self.lines.get(name), self.file) {
            (Some(line), Some(path)) => format!("{name} ({}: line {line})", path.display()),
            _ => format!("--{name}"),
        }
    }

    /// Refuses each of these settings that is given although it has no effect. `given`: the name of each, and whether it
    /// is given. `needed`: the setting that is missing. `why`: what is missing without it.
    pub(crate) fn needs(
        &mut self,
        given: &[(&str, bool)],
        has_effect: bool,
        needed: &'static str,
        why: &'static str,
    ) {
        for (name, _) in given
            .iter()
            .filter(|(_, is_given)| *is_given && !has_effect)
        {
            let given = self.named(name);
            self.found.push(Conflict::NoEffect { given, needed, why });
        }
    }

    /// Refuses a list in which one of `what` is named twice.
    pub(crate) fn once<T: Eq + Hash>(
        &mut self,
        name: &str,
        what: &str,
        all: impl Iterator<Item = T>,
    ) {
        if has_double(all) {
            self.values(name, format_args!("names the same {what} twice"));
        }
    }

    /// Refuses values of this setting that do not go together.
    pub(crate) fn values(&mut self, name: &str, why: impl fmt::Display) {
        let (setting, why) = (self.named(name), why.to_string());
        self.found.push(Conflict::Values { setting, why });
    }

    /// Refuses paths in the state directory: a copy of both, put back later, would bring leases back that are over.
    pub(crate) fn in_state_dir<'p>(
        &mut self,
        name: &str,
        paths: impl Iterator<Item = &'p Path>,
        state_dir: &Path,
    ) {
        let state = real_path(state_dir);
        for path in paths {
            let parent = || real_path(path.parent().unwrap_or(path));
            if path
                .canonicalize()
                .unwrap_or_else(|_| parent())
                .starts_with(&state)
            {
                let one = format!("{} {}", self.named(name), path.display());
                let other = format!("{} {}", self.named("state-dir"), state_dir.display());
                self.both(
                    one,
                    other,
                    "a copy of the state directory must not have the bytes of leases in it, because leases that are over would come back \
                     with it; name a place outside, such as /srv",
                );
            }
        }
    }

    /// Refuses two settings together, which are here with their values.
    pub(crate) fn both(&mut self, one: String, other: String, why: impl fmt::Display) {
        let why = why.to_string();
        self.found.push(Conflict::Both { one, other, why });
    }
}

pub(crate) fn has_double<T: Eq + Hash>(mut all: impl Iterator<Item = T>) -> bool {
    let mut seen = HashSet::new();
    !all.all(|one| seen.insert(one))
}

/// The path with links resolved; if the path does not exist, as written.
pub(crate) fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
