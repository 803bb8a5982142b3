//! How the operator gave each setting, for errors.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
    path::{Path, PathBuf},
};

/// The configuration file and its lines, for the names of settings.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The file; `None`: every setting is a flag.
    pub(crate) file: Option<&'a Path>,
    /// The number of the line of each setting in the file.
    pub(crate) lines: &'a BTreeMap<String, usize>,
}

impl Named<'_> {
    /// The setting of this name in the operator's notation: a flag, or a line of the file.
    pub(crate) fn of(&self, name: &str) -> String {
        match (self.lines.get(name), self.file) {
            (Some(line), Some(path)) => format!("{name} ({}: line {line})", path.display()),
            _ => format!("--{name}"),
        }
    }

    /// Refuses the first of these settings that is given although it has no effect. `given`: the name of each, and
    /// whether it is given. `needed`: the setting that is missing. `why`: what is missing without it.
    pub(crate) fn needs(
        &self,
        given: &[(&str, bool)],
        has_effect: bool,
        needed: &str,
        why: &str,
    ) -> Result<(), String> {
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) if !has_effect => Err(format!(
                "{} without {needed}: {why}; give that too, or leave this out",
                self.of(name)
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a list in which one of `what` is named twice.
    pub(crate) fn once<T: Eq + Hash>(
        &self,
        name: &str,
        what: &str,
        all: impl Iterator<Item = T>,
    ) -> Result<(), String> {
        match has_double(all) {
            true => Err(format!("{} names the same {what} twice", self.of(name))),
            false => Ok(()),
        }
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
