//! The crates of others that a program consists of: their licences, and the software bill of materials.

use crate::cargo::{cargo, output};
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Beginnings of the names of files with licences, in small letters.
const LICENCES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "notice",
    "copyright",
    "unlicense",
];

/// Name and version.
type Id = (String, String);

/// The crates of a program of this checkout, its own ones among them.
pub(super) struct Crates {
    /// The crate of the program.
    root: Id,
    all: BTreeMap<Id, Crate>,
    /// The text of Apache-2.0.
    apache: PathBuf,
}

struct Crate {
    /// SPDX
    licence: String,
    repository: Option<String>,
    directory: PathBuf,
    is_ours: bool,
    /// SHA-256 of the download.
    checksum: Option<String>,
    uses: BTreeSet<Id>,
}

impl Crates {
    /// The crates that the programs of this package are linked from.
    pub(super) fn of(layout: &Layout, package: &str) -> Result<Self> {
        let words = [
            "tree",
            "--locked",
            "-p",
            package,
            "-e",
            "normal,no-proc-macro",
        ];
        let form = ["--prefix", "none", "--format", "{p}", "--no-dedupe"];
        let tree = output(cargo(layout, &[&words[..], &form].concat())?)?;
        let parts: Vec<Id> = tree.lines().filter_map(id_of_line).collect();
        let root = parts
            .first()
            .context("cargo tree names no package")?
            .clone();
        let parts: BTreeSet<Id> = parts.into_iter().collect();
        let words = ["metadata", "--locked", "--format-version=1"];
        let metadata: Value = serde_json::from_str(&output(cargo(layout, &words)?)?)?;
        let checksums = checksums(&fs::read_to_string(layout.repository().join("Cargo.lock"))?);
        let list = |value: &Value| value.as_array().cloned().context("cargo metadata");
        let mut by_id = BTreeMap::new();
        let mut all = BTreeMap::new();
        for package in list(&metadata["packages"])? {
            let text = |name: &str| package[name].as_str().map(str::to_owned);
            let id = text("name")
                .zip(text("version"))
                .context("cargo metadata: a package")?;
            by_id.insert(text("id"), id.clone());
            if parts.contains(&id) {
                let manifest = PathBuf::from(text("manifest_path").unwrap_or_default());
                let part = Crate {
                    licence: text("license").with_context(|| format!("{} has no licence", id.0))?,
                    repository: text("repository"),
                    directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
                    is_ours: package["source"].is_null(),
                    checksum: checksums.get(&id).cloned(),
                    uses: BTreeSet::new(),
                };
                all.insert(id, part);
            }
        }
        for node in list(&metadata["resolve"]["nodes"])? {
            let named = |it: &Value| by_id.get(&it.as_str().map(str::to_owned)).cloned();
            let Some(part) = named(&node["id"]).and_then(|id| all.get_mut(&id)) else {
                continue;
            };
            let uses = list(&node["dependencies"])?;
            part.uses = uses
                .iter()
                .filter_map(named)
                .filter(|id| parts.contains(id))
                .collect();
        }
        let apache = layout.repository().join("LICENSE-APACHE");
        Ok(Self { root, all, apache })
    }

    /// The licences of the crates of others, each text once.
    pub(super) fn licences(&self, program: &str) -> Result<String> {
        let mut list = String::new();
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for ((name, version), part) in self.all.iter().filter(|(_, it)| !it.is_ours) {
            list += &format!("{name} {version}: {}\n", part.licence);
            for text in self
                .texts(part)
                .with_context(|| format!("licences of {name}"))?
            {
                texts
                    .entry(text)
                    .or_default()
                    .insert(format!("{name} {version}"));
            }
        }
        let texts = texts.into_iter().map(|(text, of)| {
            let of: Vec<String> = of.into_iter().collect();
            format!(
                "\n{}\n{}\n\n{}\n",
                "=".repeat(80),
                of.join(", "),
                text.trim_end()
            )
        });
        let texts: String = texts.collect();
        Ok(format!(
            "{program} contains these crates, under these licences:\n\n{list}{texts}"
        ))
    }

    /// The texts in the directory of a crate; without any, those of another crate of its repository, or that of
    /// Apache-2.0.
    fn texts(&self, part: &Crate) -> Result<Vec<String>> {
        let own = texts_in(&part.directory)?;
        if !own.is_empty() {
            return Ok(own);
        }
        let is_sibling =
            |it: &&Crate| it.repository == part.repository && it.licence == part.licence;
        for sibling in self.all.values().filter(is_sibling) {
            let texts = texts_in(&sibling.directory)?;
            if !texts.is_empty() {
                return Ok(texts);
            }
        }
        // The text of this licence is the same for everybody, and names no owner.
        if part.licence.contains("Apache-2.0") {
            return Ok(vec![fs::read_to_string(&self.apache)?]);
        }
        anyhow::bail!(
            "no text of {} in {}, nor in a crate of the same repository",
            part.licence,
            part.directory.display()
        )
    }

    /// The bill of materials, in the form of CycloneDX 1.5.
    pub(super) fn sbom(&self) -> Result<String> {
        let purl = |(name, version): &Id| format!("pkg:cargo/{name}@{version}");
        let component = |id: &Id, part: &Crate, kind: &str| {
            let mut component = json!({
                "type": kind, "bom-ref": purl(id), "name": id.0, "version": id.1, "purl": purl(id),
                "licenses": [{"expression": part.licence.replace('/', " OR ")}],
            });
            if let Some(sum) = &part.checksum {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            component
        };
        let root = self
            .all
            .get(&self.root)
            .context("the program's own crate")?;
        let others = self.all.iter().filter(|(id, _)| **id != self.root);
        let dependencies = self.all.iter().map(|(id, part)| {
            let uses: Vec<String> = part.uses.iter().map(purl).collect();
            json!({"ref": purl(id), "dependsOn": uses})
        });
        let sbom = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": component(&self.root, root, "application")},
            "components": others.map(|(id, it)| component(id, it, "library")).collect::<Vec<_>>(),
            "dependencies": dependencies.collect::<Vec<_>>(),
        });
        Ok(serde_json::to_string_pretty(&sbom)? + "\n")
    }
}

/// Reads `NAME vVERSION …`.
fn id_of_line(line: &str) -> Option<Id> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    Some((name, words.next()?.strip_prefix('v')?.to_owned()))
}

/// The checksums of a `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let blocks = lock.split("[[package]]").filter_map(|block| {
        let value = |key: &str| {
            let mut lines = block.lines();
            lines.find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        let id = (value("name")?.to_owned(), value("version")?.to_owned());
        Some((id, value("checksum")?.to_owned()))
    });
    blocks.collect()
}

/// The texts of the files with licences in a directory, and in one of its directories that is named like them.
fn texts_in(directory: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if !LICENCES.iter().any(|it| name.starts_with(it)) {
            continue;
        }
        let mut files = vec![entry.path()];
        if entry.file_type()?.is_dir() {
            let inside = fs::read_dir(entry.path())?.map(|it| Ok(it?.path()));
            files = inside.collect::<Result<_>>()?;
        }
        for file in files {
            let text = fs::read(file)?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_read_from_cargos_lists() {
        let id = ("ring".to_owned(), "0.17.14".to_owned());
        assert_eq!(id_of_line("ring v0.17.14"), Some(id.clone()));
        assert_eq!(
            id_of_line("fabricbios-node v0.1.0 (/src/node)").unwrap().0,
            "fabricbios-node"
        );
        assert_eq!(id_of_line(""), None);
        let lock = "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"ring\"\n\
                    version = \"0.17.14\"\nsource = \"registry\"\nchecksum = \"ab12\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(id, "ab12".to_owned())]));
    }

    #[test]
    fn the_node_is_linked_from_known_crates_and_has_all_their_licences() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let crates = Crates::of(&Layout::new(repository), "fabricbios-node").unwrap();
        let licences = crates.licences("fabricbios-node").unwrap();
        for part in [
            "\nredb ",
            "\nrustls ",
            "Permission is hereby granted",
            "Apache License",
        ] {
            assert!(licences.contains(part), "{part}");
        }
        // Procedural macros and tests are no part of the program.
        assert!(!licences.contains("\nproptest ") && !licences.contains("\nsyn "));
        let sbom: Value = serde_json::from_str(&crates.sbom().unwrap()).unwrap();
        let components = sbom["components"].as_array().unwrap();
        let redb = components.iter().find(|it| it["name"] == "redb").unwrap();
        assert_eq!(redb["hashes"][0]["content"].as_str().unwrap().len(), 64);
        let dependencies = sbom["dependencies"].as_array().unwrap();
        let root = &sbom["metadata"]["component"]["bom-ref"];
        let of_root = dependencies.iter().find(|it| it["ref"] == *root).unwrap();
        assert!(
            of_root["dependsOn"]
                .as_array()
                .unwrap()
                .contains(&redb["bom-ref"])
        );
    }
}
