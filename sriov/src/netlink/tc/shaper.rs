//! Shapes the frames that leave an interface: htb for the rate, fq_codel for the flows.

use netlink_packet_core::{DefaultNla, NLM_F_ECHO, NlasIterator};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcHandle, TcMessage, TcOption, TcQdiscFqCodelOption},
};

use super::{By, Error, Netlink, kind_of, message, of_kind, options_of, value_of};

/// The shaper of an interface, and its only class.
const SHAPER: TcHandle = TcHandle { major: 1, minor: 0 };
const CLASS: TcHandle = TcHandle { major: 1, minor: 1 };

/// `TCA_HTB_PARMS`, `TCA_HTB_INIT`, `TCA_HTB_RATE64`, `TCA_HTB_CEIL64`.
const HTB_PARMS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
/// `struct tc_htb_glob.version`.
const HTB_VERSION: u32 = 3;
/// Bytes of `struct tc_htb_opt`.
const HTB_OPTION_BYTES: usize = 44;
/// `TC_LINKLAYER_ETHERNET`: the kernel needs no rate tables.
const ETHERNET: u8 = 1;
/// The bytes that a class sends at once: a TCP segment before the card splits it.
const BURST_BYTES: u64 = 128 << 10;
const QUEUE_BYTES_MIN: u64 = 256 << 10;
/// A tick of the kernel's scheduler is 64 ns (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

impl Netlink {
    /// Limits all frames that leave the interface to the rate, in bytes per second; flows share the rate (htb,
    /// fq_codel).
    ///
    /// # Errors
    /// The kernel has no htb or no fq_codel, or refuses them.
    pub fn shape(&self, index: u32, rate: u64) -> Result<(), Error> {
        let by = By::Index(index);
        let glob = words(&[HTB_VERSION, 10, CLASS.minor.into(), 0, 0]);
        let init = TcOption::Other(DefaultNla::new(HTB_INIT, glob));
        let root = of_kind(message(index, TcHandle::ROOT, SHAPER), "htb", vec![init]);
        let root = RouteNetlinkMessage::NewQueueDiscipline(root);
        self.add("add htb to", by, root)?;
        let class = of_kind(message(index, SHAPER, CLASS), "htb", class_options(rate));
        let class = RouteNetlinkMessage::NewTrafficClass(class);
        self.add("add the class of htb to", by, class)?;
        let limit = TcQdiscFqCodelOption::MemoryLimit(queue_bytes(rate));
        let leaf = message(index, CLASS, TcHandle::UNSPEC);
        let leaf = of_kind(leaf, "fq_codel", vec![TcOption::FqCodel(limit)]);
        let leaf = RouteNetlinkMessage::NewQueueDiscipline(leaf);
        self.add("add fq_codel to", by, leaf)
    }

    /// The rate that [`Netlink::shape`] has set, in bytes per second; `None`: the interface is not shaped.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn shaped(&self, index: u32) -> Result<Option<u64>, Error> {
        for (parent, expected) in [(TcHandle::ROOT, "htb"), (CLASS, "fq_codel")] {
            let asked = message(index, parent, TcHandle::UNSPEC);
            let asked = RouteNetlinkMessage::GetQueueDiscipline(asked);
            let found = self.tc("get queue of", index, asked)?;
            if found.as_ref().and_then(kind_of) != Some(expected) {
                return Ok(None);
            }
        }
        let asked = message(index, TcHandle::UNSPEC, CLASS);
        let asked = RouteNetlinkMessage::GetTrafficClass(asked);
        let found = self.tc("get the class of htb of", index, asked)?;
        Ok(found.as_ref().and_then(options_of).and_then(rate_of))
    }

    /// Reads a qdisc or class; `None`: it does not exist.
    fn tc(
        &self,
        step: &'static str,
        index: u32,
        message: RouteNetlinkMessage,
    ) -> Result<Option<TcMessage>, Error> {
        // Without this flag the kernel sends the answer to listeners only, not to the requester.
        let found = match self.request(step, &By::Index(index), message, NLM_F_ECHO) {
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
            found => found?,
        };
        Ok(found.into_iter().find_map(|it| match it {
            RouteNetlinkMessage::NewQueueDiscipline(it)
            | RouteNetlinkMessage::NewTrafficClass(it) => Some(it),
            _ => None,
        }))
    }
}

/// The bytes that may wait in the shaper: those of 20 ms, and a few TCP segments before the card splits them. These
/// frames still leave after the rules are cut.
fn queue_bytes(rate: u64) -> u32 {
    u32::try_from((rate / 50).max(QUEUE_BYTES_MIN)).unwrap_or(u32::MAX)
}

/// `struct tc_htb_opt`, with ceiling = rate.
fn class_options(rate: u64) -> Vec<TcOption> {
    let rate = rate.max(1);
    let slow = u32::try_from(rate).unwrap_or(u32::MAX);
    let mut spec = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    spec.extend(slow.to_ne_bytes());
    // At least 2 ms of the rate; with less, a fast link never reaches its rate.
    let burst = BURST_BYTES.max(rate / 500);
    let burst_ns = u128::from(burst) * 1_000_000_000 / u128::from(rate);
    let ticks = u32::try_from(burst_ns / u128::from(TICK_NS)).unwrap_or(u32::MAX);
    let quantum = u32::try_from(burst).unwrap_or(u32::MAX);
    let mut bytes = spec.repeat(2);
    bytes.extend(words(&[ticks, ticks, quantum, 0, 0]));
    let mut options = vec![DefaultNla::new(HTB_PARMS, bytes)];
    if rate > u64::from(u32::MAX) {
        let wide = rate.to_ne_bytes().to_vec();
        options.push(DefaultNla::new(HTB_RATE64, wide.clone()));
        options.push(DefaultNla::new(HTB_CEIL64, wide));
    }
    options.into_iter().map(TcOption::Other).collect()
}

/// The rate of a class whose ceiling equals its rate.
fn rate_of(options: &[TcOption]) -> Option<u64> {
    // The crate does not know htb: it returns all options as one attribute.
    let [TcOption::Other(all)] = options else {
        return None;
    };
    let all = value_of(all);
    let find = |kind| {
        let mut found = NlasIterator::new(&all[..]).filter_map(Result::ok);
        found
            .find(|it| it.kind() == kind)
            .map(|it| it.value().to_vec())
    };
    let parms = find(HTB_PARMS).filter(|it| it.len() >= HTB_OPTION_BYTES)?;
    let narrow = |at: usize| {
        let bytes = parms.get(at..at + 4)?.try_into().ok()?;
        Some(u64::from(u32::from_ne_bytes(bytes)))
    };
    let wide = |kind| {
        let bytes = find(kind)?.try_into().ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let rate = wide(HTB_RATE64).or(narrow(8))?;
    let ceiling = wide(HTB_CEIL64).or(narrow(20))?;
    (rate == ceiling).then_some(rate)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use netlink_packet_core::{Emitable, Parseable};

    use super::*;

    #[test]
    fn the_rate_of_a_class_is_read_back_also_above_32_bits() {
        for rate in [1, 1_250_000, u64::from(u32::MAX), 50_000_000_000] {
            let class = of_kind(message(3, SHAPER, CLASS), "htb", class_options(rate));
            let mut bytes = vec![0; class.buffer_len()];
            class.emit(&mut bytes);
            let read = TcMessage::parse(&bytes).unwrap();
            assert_eq!(rate_of(options_of(&read).unwrap()), Some(rate));
        }
    }
}
