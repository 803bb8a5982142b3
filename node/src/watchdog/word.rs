//! What the daemon tells its watchdog, a line of text each: whoever debugs the one can read the other.

use std::{fmt, str::FromStr};

use fabricbios_lease::BootTime;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::{Generation, LeaseId};

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The lease over NVMe-oF may be used until then.
    Until(LeaseId, Generation, BootTime),
    /// Its access has ended, proven; for this generation and all before it.
    Over(LeaseId, Generation),
    /// Access to the lease over RDMA opens through this queue pair.
    Opens(LeaseId, GuardedPair),
    /// The lease over RDMA may be used until then.
    Extend(LeaseId, BootTime),
    /// The cut of the queue pair of that number was proved, or failed.
    Ends(LeaseId, u32),
    /// A cut over RDMA has begun.
    Moves,
    /// All leases of before have been named: watch from now on, instead of the watchdog of an earlier run.
    Begin,
    /// Answer, if you are well.
    Ping,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(lease, generation, deadline) => {
                write!(f, "until {lease} {} {}", generation.0, deadline.0)
            }
            Self::Over(lease, generation) => write!(f, "over {lease} {}", generation.0),
            Self::Opens(lease, pair) => write!(
                f,
                "opens {lease} {} {} {} {} {} {} {}",
                pair.number,
                pair.peer,
                pair.handle,
                pair.descriptor,
                pair.driver,
                pair.device_index,
                pair.port
            ),
            Self::Extend(lease, deadline) => write!(f, "extend {lease} {}", deadline.0),
            Self::Ends(lease, number) => write!(f, "ends {lease} {number}"),
            Self::Moves => f.write_str("moves"),
            Self::Begin => f.write_str("begin"),
            Self::Ping => f.write_str("ping"),
        }
    }
}

/// A line that is no [`Word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAWord;

impl FromStr for Word {
    type Err = NotAWord;

    fn from_str(line: &str) -> Result<Self, NotAWord> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["until", lease, generation, deadline] => Ok(Self::Until(
                parsed(lease)?,
                Generation(parsed(generation)?),
                BootTime(parsed(deadline)?),
            )),
            ["over", lease, generation] => {
                Ok(Self::Over(parsed(lease)?, Generation(parsed(generation)?)))
            }
            [
                "opens",
                lease,
                number,
                peer,
                handle,
                descriptor,
                driver,
                device_index,
                port,
            ] => {
                let pair = GuardedPair {
                    number: parsed(number)?,
                    peer: parsed(peer)?,
                    handle: parsed(handle)?,
                    descriptor: parsed(descriptor)?,
                    driver: parsed(driver)?,
                    device_index: parsed(device_index)?,
                    port: parsed(port)?,
                };
                Ok(Self::Opens(parsed(lease)?, pair))
            }
            ["extend", lease, deadline] => {
                Ok(Self::Extend(parsed(lease)?, BootTime(parsed(deadline)?)))
            }
            ["ends", lease, number] => Ok(Self::Ends(parsed(lease)?, parsed(number)?)),
            ["moves"] => Ok(Self::Moves),
            ["begin"] => Ok(Self::Begin),
            ["ping"] => Ok(Self::Ping),
            _ => Err(NotAWord),
        }
    }
}

fn parsed<T: FromStr>(word: &str) -> Result<T, NotAWord> {
    word.parse().map_err(|_unparsed: T::Err| NotAWord)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (lease, generation) = (LeaseId(0xF00), Generation(7));
        let pair = GuardedPair {
            number: 17,
            peer: 18,
            handle: 3,
            descriptor: 12,
            driver: 14,
            device_index: 1,
            port: 2,
        };
        for word in [
            Word::Until(lease, generation, BootTime(u64::MAX)),
            Word::Over(lease, generation),
            Word::Opens(lease, pair),
            Word::Extend(lease, BootTime(u64::MAX)),
            Word::Ends(lease, 17),
            Word::Moves,
            Word::Begin,
            Word::Ping,
        ] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
    }

    #[test]
    fn anything_else_is_not_understood() {
        let lease = LeaseId(1);
        for line in [
            String::new(),
            "begin ".into(),
            format!("until {lease} 1"),
            format!("until {lease} 1 -1"),
            format!("over {lease} 4294967296"),
            format!("over {lease} 1 2"),
            format!("opens {lease} 1 2 3 4 5 6"),
            format!("opens {lease} 1 2 3 4 5 6 256"),
            format!("ends {lease}"),
        ] {
            assert_eq!(line.parse::<Word>(), Err(NotAWord), "{line}");
        }
    }
}
