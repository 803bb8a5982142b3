//! Processes, identified by process id and start time.

use std::{fs, io};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

/// A process that has or had the device open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Start time in the kernel's ticks since boot: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// `/proc/self/stat` cannot be read.
    pub fn me() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let (_, start) = state_and_start(&stat).ok_or_else(|| {
            io::Error::other(format!("/proc/self/stat has no start time: {stat}"))
        })?;
        let pid = std::process::id();
        Ok(Self { pid, start })
    }

    /// Whether the process still runs; a zombie does not. If `/proc` does not show the process, a signal tests it,
    /// since this process may have no `/proc`.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => state_and_start(&stat)
                .is_some_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X')),
            Err(_) => {
                let pid = i32::try_from(self.pid).unwrap_or(i32::MAX);
                kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
            }
        }
    }
}

/// Fields 3 and 22. The second field is the program's name, which may contain anything.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let me = Owner::me().unwrap();
        assert!(me.is_alive());
        let other = Owner {
            start: me.start + 1,
            ..me
        };
        assert!(!other.is_alive(), "its number alone is not enough");
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let (_, start) = state_and_start(&stat).unwrap();
        let owner = Owner {
            pid: child.id(),
            start,
        };
        assert!(owner.is_alive());
        // End of file ends the child; waitid with WNOWAIT leaves it a zombie.
        drop(child.stdin.take());
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(pid), flags).unwrap();
        assert!(!owner.is_alive());
        child.wait().unwrap();
        assert!(!owner.is_alive());
    }

    #[test]
    fn names_with_brackets_do_not_confuse() {
        let fields: Vec<String> = (4..=30).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) b (c)) S {}", fields.join(" "));
        assert_eq!(state_and_start(&stat), Some(('S', 22)));
        assert_eq!(state_and_start("7 (a) S 1 2"), None);
    }
}
