//! `cargo xtask fstests`: tests of xfstests on leased devices, and on loop devices to compare with, in guests.
//!
//! xfstests is not part of this project (GPL-2).

use crate::cargo::{self, Profile, program};
use crate::lab::{BootArguments, say};
use crate::upstream::{self, Guests};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use fabricbios_testbed::Layout;
use fabricbios_testbed::requirements::Need;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const RUNNER: &str = "testbed/fstests/run.py";
/// Tests of xfstests' groups `auto` and `quick`, one a line; `#` begins a comment.
const LIST: &str = include_str!("../../fstests/tests");
const TESTS_PER_GUEST: usize = 25;

/// The arguments of `cargo xtask fstests`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A checkout of xfstests; it stays as it is
    #[arg(long, value_name = "PATH")]
    checkout: PathBuf,
    /// The devices
    #[arg(long, value_enum, default_values_t = [Device::Loop, Device::NvmeTcp, Device::NvmeRdma, Device::Udp])]
    device: Vec<Device>,
    /// The file system
    #[arg(long, value_enum, default_value_t = FileSystem::Ext4)]
    fs: FileSystem,
    #[command(flatten)]
    boot: BootArguments,
    /// Only these tests, for example generic/034; by default those of testbed/fstests/tests
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// A loop device of the guest, without a lease: a test that fails here too is not the lease's
    Loop,
    /// A lease over NVMe/TCP
    NvmeTcp,
    /// A lease over NVMe/RDMA
    NvmeRdma,
    /// A lease over UDP (FBBU)
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileSystem {
    Ext4,
    Xfs,
}

/// The name on the command line.
fn name_of(value: &impl ValueEnum) -> String {
    let name = value.to_possible_value();
    name.map_or_else(String::new, |it| it.get_name().to_owned())
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let copy = upstream::copy(layout, &arguments.checkout, "xfstests", "tests/generic")?;
    let lab = arguments
        .boot
        .prepare(layout, &[Need::Guest, Need::Build, Need::Fstests], &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    let tests = tests(Path::new(&copy), arguments)?;
    say("building xfstests");
    cargo::run(program(layout, "make", &["-j2", "-C", &copy]))?;
    let mut columns = Vec::new();
    let mut ours = 0;
    for device in &arguments.device {
        let (fs, device) = (arguments.fs.to_string(), device.to_string());
        println!("\n| test | {fs} on {device} | | why |");
        println!("|---|---|---|---|");
        let guests = Guests {
            lab: &lab,
            layout,
            name: "fstests",
            runner: [RUNNER, &copy, &fs, &device].map(str::to_owned).to_vec(),
            tests_per_guest: TESTS_PER_GUEST,
        };
        let began = Instant::now();
        let rows = guests.rows(&tests)?;
        let minutes = began.elapsed().as_secs_f32() / 60.0;
        println!(
            "\n{fs} on {device}, {minutes:.1} minutes: {}",
            upstream::counts(&rows)
        );
        ours += upstream::not_a_tests(&rows);
        columns.push(Column::read(device, &rows));
    }
    println!("\n{}", table(&tests, &columns));
    if ours > 0 {
        say(&format!(
            "{ours} rows are failures of the node or of its guest, not of a test"
        ));
    }
    let worse = worse(&tests, &columns);
    for (test, device) in &worse {
        say(&format!(
            "{test} fails on {device}, and not on a loop device"
        ));
    }
    Ok(if ours == 0 && worse.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The results on one device.
struct Column {
    device: String,
    results: Vec<TestResult>,
}

struct TestResult {
    test: String,
    /// `pass`, `fail` or `skip`.
    status: String,
    why: String,
}

impl Column {
    /// Reads the rows of a runner.
    fn read(device: String, rows: &str) -> Self {
        let results = rows.lines().filter_map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let &["", test, _seconds, status, why, ""] = cells.as_slice() else {
                return None;
            };
            Some(TestResult {
                test: test.to_owned(),
                status: status.to_owned(),
                why: why.to_owned(),
            })
        });
        Self {
            device,
            results: results.collect(),
        }
    }

    fn of(&self, test: &str) -> Option<&TestResult> {
        self.results.iter().find(|it| it.test == test)
    }

    fn status(&self, test: &str) -> &str {
        self.of(test).map_or("", |it| &it.status)
    }
}

/// A row for each test, and a column for each device. A reason that not all devices share names its devices.
fn table(tests: &[String], columns: &[Column]) -> String {
    let devices: Vec<&str> = columns.iter().map(|it| it.device.as_str()).collect();
    let mut lines = vec![
        format!("| test | {} | why |", devices.join(" | ")),
        format!("|---|{}---|", "---|".repeat(devices.len())),
    ];
    for test in tests {
        let statuses: Vec<&str> = columns.iter().map(|it| it.status(test)).collect();
        lines.push(format!(
            "| {test} | {} | {} |",
            statuses.join(" | "),
            reasons(test, columns)
        ));
    }
    lines.join("\n")
}

fn reasons(test: &str, columns: &[Column]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for column in columns {
        let why = column.of(test).map_or("", |it| &it.why);
        match groups.iter_mut().find(|(known, _)| *known == why) {
            Some((_, devices)) => devices.push(&column.device),
            None => groups.push((why, vec![&column.device])),
        }
    }
    if let [(why, _)] = groups.as_slice() {
        return (*why).to_owned();
    }
    let told = groups.iter().filter(|(why, _)| !why.is_empty());
    let told: Vec<String> = told
        .map(|(why, devices)| format!("{}: {why}", devices.join(", ")))
        .collect();
    told.join("; ")
}

/// Tests that fail on a lease and not on the loop device; none without a loop device to compare with.
fn worse<'a>(tests: &'a [String], columns: &'a [Column]) -> Vec<(&'a str, &'a str)> {
    let Some(plain) = columns
        .iter()
        .find(|it| it.device == Device::Loop.to_string())
    else {
        return Vec::new();
    };
    let pairs = tests
        .iter()
        .flat_map(|test| columns.iter().map(move |column| (test.as_str(), column)));
    pairs
        .filter(|(test, column)| column.status(test) == "fail" && plain.status(test) != "fail")
        .map(|(test, column)| (test, column.device.as_str()))
        .collect()
}

/// The chosen tests, or those of the list that are for this file system, in the order in which `check` runs them.
fn tests(checkout: &Path, arguments: &Arguments) -> Result<Vec<String>> {
    let mut tests = if arguments.tests.is_empty() {
        listed(arguments.fs)
    } else {
        arguments.tests.clone()
    };
    tests.sort();
    tests.dedup();
    for test in &tests {
        let known = checkout.join("tests").join(test).is_file();
        ensure!(
            known,
            "{test} is no test of this checkout; one is called, for example, generic/034"
        );
    }
    Ok(tests)
}

/// The tests of the list for all file systems, which xfstests calls generic, and those for this one.
fn listed(fs: FileSystem) -> Vec<String> {
    let lines = LIST.lines().filter_map(|line| line.split('#').next());
    let fits = |test: &&str| {
        let group = test.split_once('/').map_or("", |(group, _)| group);
        group == "generic" || group == name_of(&fs)
    };
    lines
        .map(str::trim)
        .filter(fits)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests_of_tables {
    use super::*;

    const LOOP: &str = "noise\n| ext4/001 | 2 s | pass |  |\n| generic/002 | 3 s | fail | no x |\n\
                        | generic/003 | 1 s | pass |  |\n| generic/004 | 1 s | skip | no fsverity |\n";
    const LEASED: &str = "| ext4/001 | 4 s | pass |  |\n| generic/002 | 3 s | fail | no y |\n\
                          | generic/003 |  | fail | the guest died in it: x |\n| generic/004 | 1 s | skip | no fsverity |\n\
                          | the node | after generic/004 | fail | a fence |\n";

    fn columns(names: [&str; 2]) -> [Column; 2] {
        let [one, two] = names.map(str::to_owned);
        [Column::read(one, LOOP), Column::read(two, LEASED)]
    }

    fn names() -> Vec<String> {
        ["ext4/001", "generic/002", "generic/003", "generic/004"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn a_table_has_a_column_for_each_device_and_says_whose_a_reason_is() {
        let rows = [
            "| test | loop | udp | why |",
            "|---|---|---|---|",
            "| ext4/001 | pass | pass |  |",
            "| generic/002 | fail | fail | loop: no x; udp: no y |",
            "| generic/003 | pass | fail | udp: the guest died in it: x |",
            "| generic/004 | skip | skip | no fsverity |",
        ];
        assert_eq!(table(&names(), &columns(["loop", "udp"])), rows.join("\n"));
    }

    #[test]
    fn what_fails_only_on_a_lease_is_found() {
        assert_eq!(
            worse(&names(), &columns(["loop", "udp"])),
            [("generic/003", "udp")]
        );
        assert!(worse(&names(), &columns(["nvme-tcp", "udp"])).is_empty());
    }

    #[test]
    fn the_list_has_at_most_fifty_tests_in_their_order() {
        let list = listed(FileSystem::Ext4);
        let mut sorted = list.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(list, sorted);
        assert!((1..=50).contains(&list.len()), "{} tests", list.len());
    }

    #[test]
    fn tests_for_another_file_system_are_left_out() {
        let of_ext4 = |fs| listed(fs).iter().any(|test| test.starts_with("ext4/"));
        assert!(of_ext4(FileSystem::Ext4) && !of_ext4(FileSystem::Xfs));
    }
}
