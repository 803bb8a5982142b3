//! Messages from the daemon to its watchdog, one line of text each, readable for debugging.

use std::{fmt, str::FromStr};

use fabricbios_lease::BootTime;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::{Generation, LeaseId, ResourceType};

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchdogMessage {
    /// The deadline of a lease that is ended by name, over a path of this kind.
    Until(ResourceType, LeaseId, Generation, BootTime),
    /// The end of access is proved, for this generation and all before it.
    Over(ResourceType, LeaseId, Generation),
    /// This queue pair is about to give access to a lease over RDMA.
    Opens(LeaseId, GuardedPair),
    /// The new deadline of a lease over RDMA.
    Extend(LeaseId, BootTime),
    /// The cut of the queue pair with this number was proved, or failed.
    Ends(LeaseId, u32),
    /// A cut over RDMA has begun.
    Moves,
    /// All earlier leases were sent: watch from now on, and replace the watchdog of an earlier run.
    Begin,
    /// Reply with `well`.
    Ping,
}

impl fmt::Display for WatchdogMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(kind, lease, generation, deadline) => {
                write!(f, "until {kind} {lease} {} {}", generation.0, deadline.0)
            }
            Self::Over(kind, lease, generation) => {
                write!(f, "over {kind} {lease} {}", generation.0)
            }
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

/// A line that is not a [`WatchdogMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAMessage;

impl FromStr for WatchdogMessage {
    type Err = NotAMessage;

    fn from_str(line: &str) -> Result<Self, NotAMessage> {
        let messages: Vec<&str> = line.split(' ').collect();
        match messages[..] {
            ["until", kind, lease, generation, deadline] => Ok(Self::Until(
                parsed(kind)?,
                parsed(lease)?,
                Generation(parsed(generation)?),
                BootTime(parsed(deadline)?),
            )),
            ["over", kind, lease, generation] => Ok(Self::Over(
                parsed(kind)?,
                parsed(lease)?,
                Generation(parsed(generation)?),
            )),
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
            _ => Err(NotAMessage),
        }
    }
}

fn parsed<T: FromStr>(message: &str) -> Result<T, NotAMessage> {
    message.parse().map_err(|_unparsed: T::Err| NotAMessage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (kind, lease, generation) = (ResourceType::Cpu, LeaseId(0xF00), Generation(7));
        let pair = GuardedPair {
            number: 17,
            peer: 18,
            handle: 3,
            descriptor: 12,
            driver: 14,
            device_index: 1,
            port: 2,
        };
        for message in [
            WatchdogMessage::Until(kind, lease, generation, BootTime(u64::MAX)),
            WatchdogMessage::Over(kind, lease, generation),
            WatchdogMessage::Opens(lease, pair),
            WatchdogMessage::Extend(lease, BootTime(u64::MAX)),
            WatchdogMessage::Ends(lease, 17),
            WatchdogMessage::Moves,
            WatchdogMessage::Begin,
            WatchdogMessage::Ping,
        ] {
            assert_eq!(message.to_string().parse(), Ok(message));
        }
    }

    #[test]
    fn anything_else_is_not_understood() {
        let lease = LeaseId(1);
        for line in [
            String::new(),
            "begin ".into(),
            format!("until block {lease} 1"),
            format!("until bloc {lease} 1 1"),
            format!("until block {lease} 1 -1"),
            format!("over block {lease} 4294967296"),
            format!("over block {lease} 1 2"),
            format!("opens {lease} 1 2 3 4 5 6"),
            format!("opens {lease} 1 2 3 4 5 6 256"),
            format!("ends {lease}"),
        ] {
            assert_eq!(line.parse::<WatchdogMessage>(), Err(NotAMessage), "{line}");
        }
    }
}
