//! The host's operating system, as far as the installation of Debian packages needs it.

use crate::sources::{self, Source};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The host's operating system, from `os-release(5)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// For example `debian`.
    pub id: String,
    /// For example `bookworm`; empty when the system has none.
    pub codename: String,
    /// Its name for display.
    pub name: String,
}

impl System {
    /// The running host.
    pub fn current() -> Result<Self> {
        let path = "/etc/os-release";
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        Ok(Self::parse(&text))
    }

    /// Reads the text of an `os-release` file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once('='));
            let value = lines
                .filter(|(field, _)| *field == name)
                .map(|(_, value)| value)
                .next_back();
            value
                .unwrap_or_default()
                .trim_matches(['"', '\''])
                .to_owned()
        };
        Self {
            id: field("ID"),
            codename: field("VERSION_CODENAME"),
            name: field("PRETTY_NAME"),
        }
    }

    /// Whether the lab can install its requirements on this system.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.id == "debian" && ["bookworm", "trixie"].contains(&self.codename.as_str())
    }

    /// Whether this release's QEMU is too old, so that the backported one is needed.
    #[must_use]
    pub fn needs_backported_qemu(&self) -> bool {
        self.codename == "bookworm"
    }
}

/// Every source entry that apt uses on this host.
pub(crate) fn apt_sources() -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for path in source_files(Path::new("/etc/apt"))? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => found.extend(sources::parse_deb822(&text)),
            _ => found.extend(sources::parse_one_line(&text)),
        }
    }
    Ok(found)
}

fn source_files(apt: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(entries) = std::fs::read_dir(apt.join("sources.list.d")) {
        for entry in entries {
            files.push(entry?.path());
        }
    }
    let used = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("list" | "sources")) && path.is_file()
    };
    files.retain(used);
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_in_and_out_of_quotes() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\n\
                    VERSION_CODENAME=bookworm\nID=debian\n";
        let system = System::parse(text);
        assert_eq!(system.name, "Debian GNU/Linux 12 (bookworm)");
        assert!(system.is_supported() && system.needs_backported_qemu());
    }

    #[test]
    fn other_systems_are_told_apart() {
        let ubuntu = System::parse("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n");
        assert!(!ubuntu.is_supported());
        let trixie = System::parse("ID=debian\nVERSION_CODENAME=trixie\n");
        assert!(trixie.is_supported() && !trixie.needs_backported_qemu());
        assert!(!System::parse("").is_supported());
    }
}
