//! Calling cargo and other programs of the host.

use anyhow::{Context, Result, bail};
use fabricbios_testbed::{Layout, Outcome, end_with_parent, requirements};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// `cargo ARGUMENTS` in the checkout, with the checkout's own tools in the path.
pub(crate) fn cargo(layout: &Layout, arguments: &[&str]) -> Result<Command> {
    calling_cargo(layout, "cargo", arguments)
}

/// A program that calls cargo, as [`cargo`] does.
pub(crate) fn calling_cargo(layout: &Layout, name: &str, arguments: &[&str]) -> Result<Command> {
    let mut command = program(layout, name, arguments);
    command.env("PATH", requirements::tool_path(layout)?);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(describes_this_crate) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Variables that `cargo run` sets for its program. Build scripts of dependencies watch some of
/// them: if xtask passed them on, these would be rebuilt after each build outside xtask.
fn describes_this_crate(name: &str) -> bool {
    let exact = [
        "CARGO",
        "CARGO_BIN_NAME",
        "CARGO_CRATE_NAME",
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_LINKS",
        "CARGO_MANIFEST_PATH",
        "CARGO_PRIMARY_PACKAGE",
        "OUT_DIR",
    ];
    exact.contains(&name) || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_BIN_EXE_")
}

/// A program that runs in the checkout. It ends with this process.
pub(crate) fn program(layout: &Layout, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(layout.repository());
    end_with_parent(&mut command);
    command
}

/// Runs the command with its output on the terminal. A failed exit status is an error.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let shown = command.get_program().display().to_string();
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{shown} ended with {status}")
    }
}

/// Runs the command of a step beside other steps: shows its output as a whole when it has ended.
pub(crate) fn run_beside(step: &str, mut command: Command) -> Result<Outcome> {
    let shown = command.get_program().display().to_string();
    let ended = command.output();
    let ended = ended.with_context(|| format!("cannot start {shown}"))?;
    let told = [ended.stderr, ended.stdout].concat();
    println!(
        "\n== {step}: its output\n{}",
        String::from_utf8_lossy(&told)
    );
    Ok(if ended.status.success() {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("{shown} ended with {}", ended.status))
    })
}

/// Runs the command and returns what it prints. A failed exit status is an error.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let shown = command.get_program().display().to_string();
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !output.status.success() {
        bail!("{shown} ended with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{shown} printed no UTF-8"))
}

/// The arguments that build only the programs under test.
const PROGRAMS: [&str; 5] = ["--bins", "-p", "fabricbios-node", "-p", "fabricbios-cli"];

/// The command that builds the programs under test.
pub(crate) fn build_programs(layout: &Layout, profile: Profile) -> Result<Command> {
    let release: &[&str] = match profile {
        Profile::Debug => &[],
        Profile::Release => &["--release"],
    };
    cargo(layout, &[&["build"], &PROGRAMS[..], release].concat())
}

/// How the programs under test are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

impl Profile {
    /// The directory of the programs, for `FABRICBIOS_BIN`.
    pub(crate) fn programs(self, layout: &Layout) -> PathBuf {
        let name = match self {
            Self::Debug => "debug",
            Self::Release => "release",
        };
        layout.target().join(name)
    }
}

/// The packages to build for a run. Only packages that are built by the same command share their
/// dependencies: cargo chooses the features for all of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Only the packages that the chosen steps need.
    Needed,
    /// All packages; nearly all is already built if the unit tests ran before.
    Workspace,
}

impl Scope {
    /// Builds the packages and programs that these arguments of `cargo build` choose, or the whole workspace, for
    /// [`Profile::Debug`].
    pub(crate) fn build(self, layout: &Layout, which: &[&str]) -> Result<()> {
        let which = match self {
            Self::Needed => which,
            Self::Workspace => &["--workspace", "--all-targets", "--quiet"],
        };
        run(cargo(layout, &[&["build"], which].concat())?)
    }

    /// Builds the programs under test for [`Profile::Debug`], and the stand-ins: programs in the guest load them.
    pub(crate) fn build_programs(self, layout: &Layout) -> Result<()> {
        self.build(layout, &PROGRAMS)?;
        crate::stand_ins::build(layout, self).map(drop)
    }
}

/// Builds one integration test and returns its binary.
pub(crate) fn test_binary(
    layout: &Layout,
    scope: Scope,
    package: &str,
    test: &str,
) -> Result<PathBuf> {
    let which: &[&str] = match scope {
        Scope::Needed => &["-p", package, "--test", test],
        Scope::Workspace => &["--workspace"],
    };
    let arguments = [&["test", "--no-run", "--message-format=json"], which].concat();
    executable(&output(cargo(layout, &arguments)?)?, test)
        .with_context(|| format!("cargo built no binary for the test {test} of {package}"))
}

/// The binary of a test target in cargo's messages, one JSON object a line.
fn executable(messages: &str, test: &str) -> Option<PathBuf> {
    // The last one counts: cargo lists binaries in the order of building.
    let mut messages = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == test)
            .then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    messages.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_set_stays() {
        for own in ["CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR", "OUT_DIR"] {
            assert!(describes_this_crate(own), "{own}");
        }
        for users in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS", "PATH"] {
            assert!(!describes_this_crate(users), "{users}");
        }
    }

    #[test]
    fn the_binary_is_the_one_of_that_test() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"rxe_window\"},\"executable\":\"/t/a\"}\n\
             {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/t/b\"}\n\
             {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"lib\"},\"executable\":null}\n\
             not json\n{\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(
            executable(messages, "rxe_window"),
            Some(PathBuf::from("/t/a"))
        );
        assert_eq!(executable(messages, "lib"), None);
        assert_eq!(executable(messages, "absent"), None);
    }
}
