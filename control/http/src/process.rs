//! The program's own process, for its metrics.

use std::{fs, io, time::Duration};

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{SysconfVar, sysconf},
};

/// The daemon's own process, of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Time of processors.
    pub cpu: Duration,
    /// Memory that is resident.
    pub resident_bytes: u64,
}

/// Most descriptors that the process may have open: the soft limit.
#[must_use]
pub fn descriptors_max() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(current, _)| current)
}

/// Open descriptors. Since Linux 6.2 the size of the directory is their number (proc_pid_fd(5)); on older kernels this
/// function counts the entries.
///
/// # Errors
/// /proc is not there.
pub fn descriptors() -> io::Result<u64> {
    match fs::metadata("/proc/self/fd")?.len() {
        0 => Ok(fs::read_dir("/proc/self/fd")?.count() as u64),
        told => Ok(told),
    }
}

impl Process {
    /// # Errors
    /// /proc is not there, or another kernel wrote it.
    pub fn now() -> io::Result<Self> {
        let number = |name| {
            let number = sysconf(name)?.unwrap_or(0);
            u64::try_from(number).map_err(io::Error::other)
        };
        let ticks_per_second = number(SysconfVar::CLK_TCK)?;
        let page = number(SysconfVar::PAGE_SIZE)?;
        Self::parse(
            &fs::read_to_string("/proc/self/stat")?,
            ticks_per_second,
            page,
        )
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name in parentheses may have blanks and parentheses.
    fn parse(stat: &str, ticks_per_second: u64, page: u64) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // The first of these is the third field of the file.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let (user, system, resident) = (field(14)?, field(15)?, field(24)?);
        let ticks = user.checked_add(system)?;
        let millis = ticks.checked_mul(1000)?.checked_div(ticks_per_second)?;
        Some(Self {
            cpu: Duration::from_millis(millis),
            resident_bytes: resident.checked_mul(page)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_read_whatever_its_name() {
        let text = "7 (a) b ( c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 5000 1000000 300 \
                    18446744073709551615 1 1 0";
        let read = Process::parse(text, 100, 4096);
        let expected = Process {
            cpu: Duration::from_secs(2),
            resident_bytes: 300 * 4096,
        };
        assert_eq!(read, Some(expected));
        for bad in ["", "7 (a) S", "7 (a) S x y z"] {
            assert_eq!(Process::parse(bad, 100, 4096), None);
        }
        assert!(Process::now().unwrap().resident_bytes > 0);
    }
}
