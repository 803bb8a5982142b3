//! The files of a folder.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The files below `folder`, sorted, without build outputs and hidden folders.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_ours = name != "target" && !name.starts_with('.');
            if path.is_dir() && is_ours {
                waiting.push(path);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
