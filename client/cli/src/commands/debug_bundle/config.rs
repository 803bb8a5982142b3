//! The daemon's configuration file, as far as the bundle uses it.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{secrets, sources};

/// The file, or why it cannot be used.
pub(super) struct Config(Result<Table, String>);

impl Config {
    pub(super) fn read(path: &Path) -> Self {
        let parsed = sources::file(path).and_then(|bytes| {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_bytes| format!("{}: it is no text", path.display()))?;
            text.parse().map_err(|error: toml::de::Error| {
                format!("{}: {}", path.display(), error.message())
            })
        });
        Self(parsed)
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_ok()
    }

    /// Why it cannot be used.
    pub(super) fn why(&self) -> String {
        self.0.as_ref().err().cloned().unwrap_or_default()
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = self.0.as_ref().ok()?.get(name)?;
        value.as_str().map(str::to_owned)
    }

    pub(super) fn path(&self, name: &str, default: &str) -> PathBuf {
        self.text(name).unwrap_or_else(|| default.to_owned()).into()
    }

    /// The settings, without comments, in which anything may stand, and without values that may be secret.
    pub(super) fn without_secrets(&self) -> Result<Vec<u8>, String> {
        let mut table = self.0.clone()?;
        for (name, value) in &mut table {
            if secrets::is_name_of_secret(name) {
                *value = Value::String(secrets::LEFT_OUT.to_owned());
            }
        }
        Ok(table.to_string().into_bytes())
    }
}
