//! The packages of this checkout, as cargo knows them.

use crate::cargo::{cargo, output};
use anyhow::{Context, Result};
use fabricbios_testbed::Layout;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Workspaces beside the main one. Other programs run their tests (a fuzzer, a build without the standard library).
pub(crate) const OTHER_WORKSPACES: [&str; 2] =
    ["testbed/fuzz/Cargo.toml", "testbed/no-std/Cargo.toml"];
/// Folders outside all packages, and the package whose tests read them.
const READ_BY: [(&str, &str); 3] = [
    ("packaging", "fabricbios-node"),
    ("testbed/vectors", "fabricbios-wire"),
    ("testbed/stand-ins/ptx", "fabricbios-gpu"),
];

/// A package of this checkout.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its directory in the checkout.
    pub(crate) folder: PathBuf,
    /// The packages that it is built from.
    pub(crate) uses: Vec<String>,
    /// The packages that only its tests are built from.
    pub(crate) tests_use: Vec<String>,
}

/// All packages.
#[derive(Debug)]
pub(crate) struct Packages(pub(crate) Vec<Package>);

impl Packages {
    pub(crate) fn read(layout: &Layout) -> Result<Self> {
        let mut all = Vec::new();
        for manifest in ["Cargo.toml"].into_iter().chain(OTHER_WORKSPACES) {
            let words = [
                "metadata",
                "--format-version=1",
                "--no-deps",
                "--manifest-path",
                manifest,
            ];
            let metadata: Value = serde_json::from_str(&output(cargo(layout, &words)?)?)?;
            let packages = metadata["packages"].as_array().context("cargo metadata")?;
            all.extend(packages.iter().filter_map(|it| package(layout, it)));
        }
        Ok(Self(all))
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Package> {
        self.0.iter().find(|it| it.name == name)
    }

    /// The package that contains this file, or reads it.
    pub(crate) fn of(&self, file: &Path) -> Option<&Package> {
        if let Some((_, reader)) = READ_BY.iter().find(|(folder, _)| file.starts_with(folder)) {
            return self.named(reader);
        }
        let having = self.0.iter().filter(|it| file.starts_with(&it.folder));
        having.max_by_key(|it| it.folder.components().count())
    }

    /// The packages that this package is built from, including itself.
    pub(crate) fn parts<'a>(&'a self, of: &'a str) -> BTreeSet<&'a str> {
        let mut parts = BTreeSet::from([of]);
        let mut next = vec![of];
        while let Some(package) = next.pop().and_then(|it| self.named(it)) {
            let new = package.uses.iter().filter(|it| parts.insert(it));
            next.extend(new.map(String::as_str));
        }
        parts
    }

    /// The packages with a test that one of these packages can break.
    pub(crate) fn tested_with<'a>(&'a self, changed: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
        let is_reached = |name: &str| !self.parts(name).is_disjoint(changed);
        let reached = self
            .0
            .iter()
            .filter(|it| is_reached(&it.name) || it.tests_use.iter().any(|name| is_reached(name)));
        reached.map(|it| it.name.as_str()).collect()
    }
}

/// Reads a package of `cargo metadata`.
fn package(layout: &Layout, package: &Value) -> Option<Package> {
    let folder = Path::new(package["manifest_path"].as_str()?).parent()?;
    let dependencies = package["dependencies"].as_array()?;
    let with = |is_of_tests: bool| {
        let kind =
            move |it: &&Value| (it["kind"] == "dev") == is_of_tests && it["path"].is_string();
        let names = dependencies
            .iter()
            .filter(kind)
            .filter_map(|it| it["name"].as_str());
        names.map(str::to_owned).collect()
    };
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        folder: folder.strip_prefix(layout.repository()).ok()?.to_owned(),
        uses: with(false),
        tests_use: with(true),
    })
}
