//! What the daemon tells its watchdog, a line of text each: whoever debugs the one can read the other.

use std::{fmt, str::FromStr};

use fabricbios_lease::BootTime;
use fabricbios_wire::{Generation, LeaseId};

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The lease may be used until then.
    Until(LeaseId, Generation, BootTime),
    /// Its access has ended, proven; for this generation and all before it.
    Over(LeaseId, Generation),
    /// All leases of before have been named: watch from now on, instead of the watchdog of an earlier run.
    Begin,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Until(lease, generation, deadline) => {
                write!(f, "until {lease} {} {}", generation.0, deadline.0)
            }
            Self::Over(lease, generation) => write!(f, "over {lease} {}", generation.0),
            Self::Begin => f.write_str("begin"),
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
            ["begin"] => Ok(Self::Begin),
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
        let until = Word::Until(lease, generation, BootTime(u64::MAX));
        for word in [until, Word::Over(lease, generation), Word::Begin] {
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
        ] {
            assert_eq!(line.parse::<Word>(), Err(NotAWord), "{line}");
        }
    }
}
