//! Traffic control: what leaves an interface is shaped, and what arrives is filtered and redirected.
//!
//! netlink-packet-route has the messages, flower, matchall and mirred. The options of htb, gact and vlan are bytes here,
//! as `linux/pkt_sched.h` and `linux/tc_act/` have them.

use fabricbios_wire::MacAddress;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NlasIterator};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionAttribute, TcActionMirrorOption, TcActionOption, TcActionType,
        TcAttribute, TcFilterFlowerOption, TcFilterMatchAllOption, TcHandle, TcHeader, TcMessage,
        TcMirror, TcMirrorActionType, TcOption, TcQdiscFqCodelOption,
    },
};

use super::{By, Error, Netlink};

/// `ETH_P_ALL`.
const ALL: u16 = 0x0003;
/// `ETH_P_8021Q`.
const VLAN: u16 = 0x8100;

/// The EtherTypes of VLAN tags: those of IEEE 802.1Q (`ETH_P_8021Q`, `ETH_P_8021AD`), and those of before that switches
/// know too (`ETH_P_QINQ1` to `ETH_P_QINQ3`).
pub const TAGS: [u16; 5] = [VLAN, 0x88a8, 0x9100, 0x9200, 0x9300];

/// The shaper of an interface, and its only class.
const SHAPER: TcHandle = TcHandle { major: 1, minor: 0 };
const CLASS: TcHandle = TcHandle { major: 1, minor: 1 };
/// What arrives at an interface with a clsact.
const ARRIVING: TcHandle = TcHandle {
    major: u16::MAX,
    minor: TcHandle::MIN_INGRESS,
};

/// The preference of the rule that redirects, whatever stands before it: only the interface must be known to delete it.
const REDIRECTS: u32 = 16;
/// The handle of its only filter.
const REDIRECTION: TcHandle = TcHandle { major: 0, minor: 1 };
/// `TCA_CLS_FLAGS_SKIP_HW`.
const SKIP_HARDWARE: u32 = 1;

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
/// A class sends that much at once: a segment of TCP before the card splits it.
const BURST_BYTES: u64 = 128 << 10;
const QUEUE_BYTES_MIN: u64 = 256 << 10;
/// A tick of the kernel's scheduler is 64 ns (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;

/// `TCA_GACT_PARMS`, `TCA_VLAN_PARMS`.
const PARAMETERS: u16 = 2;
/// `TCA_VLAN_PUSH_VLAN_ID`, `TCA_VLAN_PUSH_VLAN_PROTOCOL`.
const PUSHED_ID: u16 = 3;
const PUSHED_PROTOCOL: u16 = 4;
/// `TCA_VLAN_ACT_POP`, `TCA_VLAN_ACT_PUSH`.
const POP: i32 = 1;
const PUSH: i32 = 2;

/// Which frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// All.
    All,
    /// With this source address.
    From(MacAddress),
    /// Their first tag has this EtherType, see [`TAGS`].
    Tagged(u16),
    /// Tagged for this VLAN.
    OfVlan(u16),
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is dropped.
    Drop,
    /// It leaves through another interface, whose shaper it obeys.
    Redirect {
        /// How its tag changes.
        tag: Tag,
        /// The index of the interface.
        to: u32,
    },
}

/// How the tag of a frame changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Not at all.
    Kept,
    /// It gets the tag of this VLAN.
    Added(u16),
    /// It loses its tag.
    Removed,
}

/// A rule for frames that arrive at an interface. The first rule that fits counts.
pub type Rule = (Frames, Action);

fn message(index: u32, parent: TcHandle, handle: TcHandle) -> TcMessage {
    let mut message = TcMessage::default();
    message.header = TcHeader {
        // An index is positive.
        index: i32::try_from(index).unwrap_or(i32::MAX),
        parent,
        handle,
        ..TcHeader::default()
    };
    message
}

fn of_kind(mut message: TcMessage, kind: &str, options: Vec<TcOption>) -> TcMessage {
    message.attributes.push(TcAttribute::Kind(kind.into()));
    if !options.is_empty() {
        message.attributes.push(TcAttribute::Options(options));
    }
    message
}

fn kind_of(message: &TcMessage) -> Option<&str> {
    message.attributes.iter().find_map(|it| match it {
        TcAttribute::Kind(kind) => Some(&**kind),
        _ => None,
    })
}

fn options_of(message: &TcMessage) -> Option<&[TcOption]> {
    message.attributes.iter().find_map(|it| match it {
        TcAttribute::Options(options) => Some(&**options),
        _ => None,
    })
}

/// The rule that redirects, for a request. Without its handle: its place among the rules.
fn redirection(index: u32, handle: TcHandle) -> TcMessage {
    let mut rule = message(index, ARRIVING, handle);
    rule.header.info = REDIRECTS << 16;
    of_kind(rule, "flower", Vec::new())
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

impl Netlink {
    /// Everything that leaves the interface obeys the rate, in bytes per second, and the flows share it (htb, fq_codel).
    ///
    /// # Errors
    /// The kernel has no htb or no fq_codel, or refuses.
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

    /// The rate that [`Netlink::shape`] has set; `None`: the interface is not shaped.
    ///
    /// # Errors
    /// The system refuses.
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

    /// Sets the rules for frames that arrive at an interface without rules; one of them redirects. Frames that fit none go to
    /// the node.
    ///
    /// # Errors
    /// The kernel lacks a classifier or an action, or refuses.
    pub fn set_rules(&self, index: u32, rules: &[Rule]) -> Result<(), Error> {
        let by = By::Index(index);
        let base = TcHandle {
            major: u16::MAX,
            minor: 0,
        };
        let clsact = of_kind(message(index, TcHandle::CLSACT, base), "clsact", Vec::new());
        let clsact = RouteNetlinkMessage::NewQueueDiscipline(clsact);
        self.add("add clsact to", by, clsact)?;
        let before = rules
            .iter()
            .take_while(|(_, action)| *action == Action::Drop);
        let first = REDIRECTS.saturating_sub(u32::try_from(before.count()).unwrap_or(u32::MAX));
        for (preference, rule) in (first.max(1)..).zip(rules) {
            let filter = RouteNetlinkMessage::NewTrafficFilter(filter(index, preference, *rule));
            self.add("add a filter to", by, filter)?;
        }
        Ok(())
    }

    /// Deletes the rule that redirects what arrives at an interface of this thread's network namespace, and reads back
    /// that it is gone. `false`: there was none, or no such interface.
    ///
    /// Nothing here waits for the kernel's lock of network devices (rtnl), which a tenant can keep busy: the kernel
    /// deletes and gets a flower filter of a clsact without it (Linux 5.1). The socket is its own, as the other one may
    /// wait for that lock.
    ///
    /// # Errors
    /// The system refuses (also if the interface has no clsact), or the rule is still there.
    pub fn delete_redirect(index: u32) -> Result<bool, Error> {
        let socket = Self::open()?;
        let step = "delete the redirection of";
        let rule = redirection(index, TcHandle::UNSPEC);
        let was_there =
            socket.redirection(step, index, RouteNetlinkMessage::DelTrafficFilter(rule))?;
        match socket.has_redirection(index)? {
            true => Err(Error::new(step, &By::Index(index), "it is still there")),
            false => Ok(was_there),
        }
    }

    /// Whether what arrives at an interface is redirected. Waits as little as [`Netlink::delete_redirect`].
    ///
    /// # Errors
    /// The system refuses, also if the interface has no clsact.
    pub fn redirects(index: u32) -> Result<bool, Error> {
        Self::open()?.has_redirection(index)
    }

    fn has_redirection(&self, index: u32) -> Result<bool, Error> {
        let rule = RouteNetlinkMessage::GetTrafficFilter(redirection(index, REDIRECTION));
        self.redirection("get the redirection of", index, rule)
    }

    /// False: there is no such filter, or no such interface.
    fn redirection(
        &self,
        step: &'static str,
        index: u32,
        message: RouteNetlinkMessage,
    ) -> Result<bool, Error> {
        match self.request(step, &By::Index(index), message, 0) {
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV)) => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// The rules, in their order. `None` for a rule that [`Netlink::set_rules`] does not make.
    ///
    /// # Errors
    /// The system refuses.
    pub fn rules(&self, index: u32) -> Result<Vec<Option<Rule>>, Error> {
        let asked =
            RouteNetlinkMessage::GetTrafficFilter(message(index, ARRIVING, TcHandle::UNSPEC));
        let found = self.dump("list filters of", &By::Index(index), &asked)?;
        let found = found.into_iter().filter_map(|it| match it {
            RouteNetlinkMessage::NewTrafficFilter(filter) => Some(filter),
            _ => None,
        });
        // The kernel also lists each classifier without its filters.
        let mut found: Vec<_> = found.filter(|it| options_of(it).is_some()).collect();
        found.sort_by_key(|it| it.header.info >> 16);
        Ok(found.iter().map(rule_of).collect())
    }

    fn add(
        &self,
        step: &'static str,
        by: By<'_>,
        message: RouteNetlinkMessage,
    ) -> Result<(), Error> {
        self.request(step, &by, message, NLM_F_CREATE | NLM_F_EXCL)
            .map(|_| ())
    }

    /// `None`: it does not exist.
    fn tc(
        &self,
        step: &'static str,
        index: u32,
        message: RouteNetlinkMessage,
    ) -> Result<Option<TcMessage>, Error> {
        // Without the flag the kernel tells the listeners, and not who asks.
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

/// How much waits for the shaper: what it sends in 20 ms, and a few segments of TCP before the card splits them. These
/// frames still leave after a cut by rules.
fn queue_bytes(rate: u64) -> u32 {
    u32::try_from((rate / 50).max(QUEUE_BYTES_MIN)).unwrap_or(u32::MAX)
}

/// `struct tc_htb_opt`, with ceiling = rate.
fn class_options(rate: u64) -> Vec<TcOption> {
    let rate = rate.max(1);
    let slow = u32::try_from(rate).unwrap_or(u32::MAX);
    let mut spec = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    spec.extend(slow.to_ne_bytes());
    // Two milliseconds at least, or a fast link never gets its rate.
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

/// The rate of a class whose ceiling is the rate.
fn rate_of(options: &[TcOption]) -> Option<u64> {
    // The crate does not know htb: its options are one attribute.
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

fn value_of(attribute: &DefaultNla) -> Vec<u8> {
    use netlink_packet_core::Nla;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}

fn filter(index: u32, preference: u32, (frames, action): Rule) -> TcMessage {
    let protocol = match frames {
        Frames::All | Frames::From(_) => ALL,
        Frames::OfVlan(_) => VLAN,
        Frames::Tagged(tag) => tag,
    };
    let mut message = message(index, ARRIVING, TcHandle::UNSPEC);
    message.header.info = preference << 16 | u32::from(protocol.to_be());
    let mut key = match frames {
        Frames::From(mac) => vec![TcFilterFlowerOption::EthSrc(mac.0)],
        // The kernel takes a VLAN only for frames that are said to have one.
        Frames::OfVlan(id) => vec![
            TcFilterFlowerOption::EthType(VLAN),
            TcFilterFlowerOption::VlanId(id),
        ],
        Frames::All | Frames::Tagged(_) => Vec::new(),
    };
    if key.is_empty() && action == Action::Drop {
        let actions = TcFilterMatchAllOption::Action(actions(action));
        return of_kind(message, "matchall", vec![TcOption::MatchAll(actions)]);
    }
    // See [`Netlink::delete_redirect`].
    if action != Action::Drop {
        message.header.handle = REDIRECTION;
    }
    // The driver of a card would delete its copy of the rule under the lock.
    key.push(TcFilterFlowerOption::Flags(SKIP_HARDWARE));
    key.push(TcFilterFlowerOption::Actions(actions(action)));
    let key = key.into_iter().map(TcOption::Flower).collect();
    of_kind(message, "flower", key)
}

fn actions(action: Action) -> Vec<TcAction> {
    let (tag, to) = match action {
        Action::Drop => {
            let shot = general(TcActionType::Shot);
            let parameters = TcActionOption::Other(DefaultNla::new(PARAMETERS, shot));
            return numbered(vec![("gact", vec![parameters])]);
        }
        Action::Redirect { tag, to } => (tag, to),
    };
    let mut all = Vec::new();
    let tagging = match tag {
        Tag::Kept => None,
        Tag::Added(id) => Some((PUSH, Some(id))),
        Tag::Removed => Some((POP, None)),
    };
    if let Some((what, id)) = tagging {
        let mut parameters = general(TcActionType::Pipe);
        parameters.extend(what.to_ne_bytes());
        let mut options = vec![DefaultNla::new(PARAMETERS, parameters)];
        if let Some(id) = id {
            options.push(DefaultNla::new(PUSHED_ID, id.to_ne_bytes().into()));
            let protocol = VLAN.to_be_bytes().into();
            options.push(DefaultNla::new(PUSHED_PROTOCOL, protocol));
        }
        let options = options.into_iter().map(TcActionOption::Other).collect();
        all.push(("vlan", options));
    }
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let mirror = TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror));
    all.push(("mirred", vec![mirror]));
    numbered(all)
}

/// The `tc_gen` that the parameters of each action begin with: index, capabilities, action, two counts.
fn general(action: TcActionType) -> Vec<u8> {
    let action: i32 = action.into();
    [0i32, 0, action, 0, 0]
        .iter()
        .flat_map(|it| it.to_ne_bytes())
        .collect()
}

fn numbered(actions: Vec<(&str, Vec<TcActionOption>)>) -> Vec<TcAction> {
    let numbered = (1..).zip(actions);
    numbered
        .map(|(number, (kind, options))| {
            let mut action = TcAction::default();
            action.tab = number;
            action.attributes = vec![
                TcActionAttribute::Kind(kind.into()),
                TcActionAttribute::Options(options),
            ];
            action
        })
        .collect()
}

/// `None`: it is none of ours.
fn rule_of(message: &TcMessage) -> Option<Rule> {
    let protocol = u16::from_be(u16::try_from(message.header.info & 0xffff).ok()?);
    let mut frames = match protocol {
        ALL => Frames::All,
        tag if TAGS.contains(&tag) => Frames::Tagged(tag),
        _ => return None,
    };
    let mut actions = None;
    for option in options_of(message)? {
        match option {
            TcOption::MatchAll(TcFilterMatchAllOption::Action(found))
            | TcOption::Flower(TcFilterFlowerOption::Actions(found)) => actions = Some(found),
            TcOption::Flower(TcFilterFlowerOption::EthSrc(mac)) => {
                frames = Frames::From(MacAddress(*mac));
            }
            TcOption::Flower(TcFilterFlowerOption::VlanId(id)) => frames = Frames::OfVlan(*id),
            TcOption::Flower(TcFilterFlowerOption::EthSrcMask(mask)) if *mask != [0xff; 6] => {
                return None;
            }
            _ => {}
        }
    }
    Some((frames, action_of(actions?)?))
}

fn action_of(actions: &[TcAction]) -> Option<Action> {
    let mut tag = Tag::Kept;
    for action in actions {
        let mut kind = "";
        let mut options: &[TcActionOption] = &[];
        for attribute in &action.attributes {
            match attribute {
                TcActionAttribute::Kind(found) => kind = found,
                TcActionAttribute::Options(found) => options = found,
                _ => {}
            }
        }
        let bytes = |number| {
            options.iter().find_map(|it| match it {
                TcActionOption::Other(it) => {
                    (netlink_packet_core::Nla::kind(it) == number).then(|| value_of(it))
                }
                _ => None,
            })
        };
        let word = |value: &[u8], at: usize| {
            let word = value.get(at..at + 4)?.try_into().ok()?;
            Some(i32::from_ne_bytes(word))
        };
        match kind {
            "gact" => {
                let shot: i32 = TcActionType::Shot.into();
                return (word(&bytes(PARAMETERS)?, 8)? == shot).then_some(Action::Drop);
            }
            "vlan" => {
                tag = match word(&bytes(PARAMETERS)?, 20)? {
                    POP => Tag::Removed,
                    PUSH => Tag::Added(u16::from_ne_bytes(bytes(PUSHED_ID)?.try_into().ok()?)),
                    _ => return None,
                }
            }
            "mirred" => {
                return options.iter().find_map(|it| match it {
                    TcActionOption::Mirror(TcActionMirrorOption::Parms(it))
                        if it.eaction == TcMirrorActionType::EgressRedir =>
                    {
                        Some(Action::Redirect {
                            tag,
                            to: it.ifindex,
                        })
                    }
                    _ => None,
                });
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use netlink_packet_core::{Emitable, Parseable};

    use super::*;

    #[test]
    fn a_rule_is_the_same_after_its_way_through_a_message() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let to = 7;
        let rules = [
            (Frames::Tagged(VLAN), Action::Drop),
            (Frames::Tagged(0x9200), Action::Drop),
            (
                Frames::From(mac),
                Action::Redirect {
                    tag: Tag::Added(42),
                    to,
                },
            ),
            (
                Frames::OfVlan(42),
                Action::Redirect {
                    tag: Tag::Removed,
                    to,
                },
            ),
            (Frames::All, Action::Redirect { tag: Tag::Kept, to }),
            (Frames::All, Action::Drop),
        ];
        for rule in rules {
            let sent = filter(3, 1, rule);
            let mut bytes = vec![0; sent.buffer_len()];
            sent.emit(&mut bytes);
            let read = TcMessage::parse(&bytes).unwrap();
            assert_eq!(rule_of(&read), Some(rule));
            // The kernel deletes a rule of another kind only with its lock of network devices.
            let redirects = rule.1 != Action::Drop;
            assert!(!redirects || kind_of(&read) == Some("flower"), "{rule:?}");
        }
    }

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
