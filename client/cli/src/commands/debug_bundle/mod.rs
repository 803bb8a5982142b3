//! `debug-bundle`: one tar file with what a report of a fault needs.

mod config;
mod secrets;
mod sources;

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::{Access, NO_IDENTITY};
use crate::{
    args,
    failure::Failure,
    json::{Object, field},
    output::{Output, one_line, table},
    time_text,
};
use config::Config;

/// The list of the parts, the first of them.
const LIST: &str = "list.txt";

/// A part, or why the bundle does not have it.
struct Part {
    name: &'static str,
    found: Result<Vec<u8>, String>,
}

pub(super) fn run(
    what: &args::DebugBundle,
    access: &Access,
    output: Output,
) -> Result<(), Failure> {
    let now_ms = time_text::now_ms();
    let name = format!(
        "fabricbios-debug-{}",
        time_text::utc(now_ms).replace(':', "")
    );
    let path = what
        .out
        .clone()
        .unwrap_or_else(|| format!("{name}.tar").into());
    // Before anything is collected: the path may be wrong.
    let file = create(&path)?;
    let parts = collect(what, access);
    let list = table(&parts.iter().map(row).collect::<Vec<_>>());
    if !output.json {
        let mut stdout = io::stdout().lock();
        let told = writeln!(stdout, "{}\n", list.trim_end()).and_then(|()| stdout.flush());
        told.map_err(Failure::output)?;
    }
    let bytes = write(file, &name, now_ms / 1_000, &list, &parts)
        .map_err(|error| Failure::local(&format!("write {}", path.display()), &error))?;
    let path = path.display().to_string();
    let json = Object::from([
        field("file", &*path),
        field("bytes", bytes),
        field("parts", parts.iter().map(json_of).collect::<Vec<_>>()),
    ]);
    output.print(&json, || format!("{path}: {bytes} bytes"))
}

fn create(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| Failure::local(&format!("create {}", path.display()), &error))
}

/// Collects the parts in the order of the list.
fn collect(what: &args::DebugBundle, access: &Access) -> Vec<Part> {
    let config = Config::read(&what.config);
    let state_dir = what.state_dir.clone();
    let state_dir = state_dir.unwrap_or_else(|| config.path("state-dir", "/var/lib/fabricbios"));
    let metrics = what
        .metrics
        .clone()
        .or_else(|| config.text("metrics-listen"));
    let ask = |words: &[&str]| match &access.identity {
        Some(identity) => sources::ask(access, identity, words),
        None => Err(NO_IDENTITY.to_owned()),
    };
    let daemon = sources::daemon();
    let check = || match config.is_there() {
        true => sources::run(
            &daemon,
            &[
                "check".as_ref(),
                "--config".as_ref(),
                what.config.as_os_str(),
            ],
        ),
        false => Err(config.why()),
    };
    let log = [
        "-u",
        &*what.unit,
        "-n",
        sources::LOG_LINES,
        "--no-pager",
        "-o",
        "short-iso-precise",
    ];
    let parts = [
        (
            "fabricctl.txt",
            Ok(format!("{}\n", env!("FABRICBIOS_VERSION")).into()),
        ),
        (
            "fabricbiosd.txt",
            sources::run(&daemon, &["--version".as_ref()]),
        ),
        ("settings.toml", config.without_secrets()),
        ("ping.json", ask(&["ping"])),
        ("inventory.json", ask(&["inventory"])),
        ("leases.json", ask(&["lease", "list", "--all"])),
        ("fences.json", ask(&["fence", "list"])),
        ("check.txt", check()),
        ("kernel.txt", Ok(sources::kernel())),
        ("metrics.txt", sources::metrics(metrics.as_deref())),
        ("state-dir.txt", sources::listing(&state_dir)),
        (
            "log.txt",
            sources::run("journalctl".as_ref(), &log.map(AsRef::as_ref)),
        ),
        (
            "watchdog.log",
            sources::end_of(&state_dir.join("watchdog.log")),
        ),
    ];
    let parts = parts.into_iter().map(|(name, found)| Part {
        name,
        found: found.and_then(secrets::refuse),
    });
    parts.collect()
}

fn row(part: &Part) -> Vec<String> {
    let told = match &part.found {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(why) => format!("left out: {}", one_line(why)),
    };
    vec![part.name.to_owned(), told]
}

fn json_of(part: &Part) -> Object<'_> {
    let found = part.found.as_ref();
    Object::from([
        field("name", part.name),
        field("bytes", found.ok().map(|it| it.len() as u64)),
        field("left_out", found.err().map(|why| one_line(why))),
    ])
}

/// Writes the list and the parts below a directory of this name. Returns the size of the file.
fn write(file: File, name: &str, at: u64, list: &str, parts: &[Part]) -> io::Result<u64> {
    let mut tar = tar::Builder::new(file);
    let found = parts
        .iter()
        .map(|part| (part.name, part.found.as_deref().ok()));
    for (part, bytes) in std::iter::once((LIST, Some(list.as_bytes()))).chain(found) {
        let Some(bytes) = bytes else { continue };
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o600);
        header.set_mtime(at);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, PathBuf::from(name).join(part), bytes)?;
    }
    let file = tar.into_inner()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}
