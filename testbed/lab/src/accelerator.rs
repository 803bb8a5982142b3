//! Whether the host's hardware virtualisation really runs the lab kernel.
//!
//! `/dev/kvm` may exist and still not work with a stock kernel (nested without the feature bits): the guest
//! then dies with an emulation failure. So the lab checks the flags and tries a boot.

use crate::guest::QEMU;
use crate::initramfs::Archive;
use crate::kernel::Kernel;
use crate::machine::Accelerator;
use crate::process::die_with_parent;
use anyhow::Result;
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TRIAL_DEADLINE: Duration = Duration::from_secs(30);
const REACHED: &str = "lab: trial boot reached user space";

/// KVM if it works, else TCG. The result of a trial is kept until the host reboots.
pub(crate) fn choose(lab: &Path, kernel: &Kernel, say: &dyn Fn(&str)) -> Result<Accelerator> {
    if !has_flags(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()) || !usable() {
        return Ok(Accelerator::Tcg);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let answer = lab.join("kvm-trial");
    let known = std::fs::read_to_string(&answer).unwrap_or_default();
    let works = match known.split_once(' ') {
        Some((then, works)) if then == boot.trim() => works == "true",
        _ => {
            say("trying hardware virtualisation");
            let works = trial(lab, kernel)?;
            std::fs::write(&answer, format!("{} {works}", boot.trim()))?;
            works
        }
    };
    Ok(if works {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

fn has_flags(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags
        .flat_map(str::split_whitespace)
        .any(|flag| flag == "vmx" || flag == "svm")
}

fn usable() -> bool {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

fn trial(lab: &Path, kernel: &Kernel) -> Result<bool> {
    let place = tempfile::Builder::new()
        .prefix("kvm-trial-")
        .tempdir_in(lab)?;
    let (initramfs, console) = (place.path().join("initramfs"), place.path().join("console"));
    std::fs::write(&initramfs, trial_initramfs()?)?;
    let mut command = Command::new(QEMU);
    command
        .args([
            "-M",
            "q35",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-accel", "kvm", "-cpu", "host", "-m", "512M", "-serial"])
        .arg(format!("file:{}", console.display()))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initramfs)
        .args(["-append", "console=ttyS0 panic=-1 lab.trial"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    die_with_parent(&mut command, Signal::SIGKILL);
    let mut qemu = command.spawn()?;
    let start = Instant::now();
    let mut works = false;
    while !works && start.elapsed() < TRIAL_DEADLINE && qemu.try_wait()?.is_none() {
        works = std::fs::read_to_string(&console)
            .unwrap_or_default()
            .contains(REACHED);
        crate::guest::nap();
    }
    works |= std::fs::read_to_string(&console)
        .unwrap_or_default()
        .contains(REACHED);
    qemu.kill()?;
    qemu.wait()?;
    Ok(works)
}

fn trial_initramfs() -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.directory("bin");
    crate::job::add_first_programs(&mut archive)?;
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_virtualisation_flag_counts() {
        assert!(has_flags("processor\t: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(has_flags("flags\t\t: svm\n"));
        assert!(!has_flags(
            "flags\t\t: fpu sse vmxnet\nmodel name\t: svm vmx\n"
        ));
        assert!(!has_flags(""));
    }
}
