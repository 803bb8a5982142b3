//! Rules for frames that arrive at an interface: drop or redirect.

use fabricbios_wire::MacAddress;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionAttribute, TcActionMirrorOption, TcActionOption, TcActionType,
        TcFilterFlowerOption, TcFilterMatchAllOption, TcHandle, TcMessage, TcMirror,
        TcMirrorActionType, TcOption,
    },
};

use super::{By, Error, Netlink, message, of_kind, options_of, value_of};

/// `ETH_P_ALL`.
const ALL: u16 = 0x0003;
/// `ETH_P_8021Q`.
const VLAN: u16 = 0x8100;

/// The EtherTypes of VLAN tags: those of IEEE 802.1Q (`ETH_P_8021Q`, `ETH_P_8021AD`), and older ones that switches also
/// know (`ETH_P_QINQ1` to `ETH_P_QINQ3`).
pub const TAGS: [u16; 5] = [VLAN, 0x88a8, 0x9100, 0x9200, 0x9300];

/// The attachment point of a clsact for arriving frames.
const ARRIVING: TcHandle = TcHandle {
    major: u16::MAX,
    minor: TcHandle::MIN_INGRESS,
};

/// The preference of the rule that redirects. It does not depend on the rules before, so the interface is enough to
/// find the rule for a deletion.
const REDIRECTS: u32 = 16;
/// The handle of that rule's only filter.
const REDIRECTION: TcHandle = TcHandle { major: 0, minor: 1 };
/// `TCA_CLS_FLAGS_SKIP_HW`.
const SKIP_HARDWARE: u32 = 1;

/// `TCA_GACT_PARMS`, `TCA_VLAN_PARMS`.
const PARAMETERS: u16 = 2;
/// `TCA_VLAN_PUSH_VLAN_ID`, `TCA_VLAN_PUSH_VLAN_PROTOCOL`.
const PUSHED_ID: u16 = 3;
const PUSHED_PROTOCOL: u16 = 4;
/// `TCA_VLAN_ACT_POP`, `TCA_VLAN_ACT_PUSH`.
const POP: i32 = 1;
const PUSH: i32 = 2;

/// Selects frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// All.
    All,
    /// Frames with this source address.
    From(MacAddress),
    /// Frames whose first tag has this EtherType, see [`TAGS`].
    Tagged(u16),
    /// Frames with a tag for this VLAN.
    OfVlan(u16),
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is dropped.
    Drop,
    /// It leaves through another interface, within the rate of that interface's shaper.
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

/// A rule for frames that arrive at an interface. The first matching rule decides.
pub type Rule = (Frames, Action);

/// A request about the rule that redirects. Without the handle of its filter: about its place among the rules.
fn redirection(index: u32, handle: TcHandle) -> TcMessage {
    let mut rule = message(index, ARRIVING, handle);
    rule.header.info = REDIRECTS << 16;
    of_kind(rule, "flower", Vec::new())
}

impl Netlink {
    /// Sets the rules for frames that arrive at an interface, which must have no rules. One of the rules redirects.
    /// Frames that match no rule go to the node.
    ///
    /// # Errors
    /// The kernel lacks a classifier or an action, or refuses a rule.
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

    /// Deletes the redirecting rule of an interface in this thread's network namespace, and reads back that the rule is
    /// gone. `false`: there was no such rule or no such interface.
    ///
    /// Nothing here waits for the kernel's lock of network devices (rtnl), which a tenant can keep busy: since Linux
    /// 5.1 the kernel deletes and reads a flower filter of a clsact without it. The call opens its own socket, because
    /// another call on a shared socket may wait for that lock.
    ///
    /// # Errors
    /// The kernel refuses (also if the interface has no clsact), or the rule still exists.
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

    /// Whether a rule redirects frames that arrive at an interface. Waits for no lock, like
    /// [`Netlink::delete_redirect`].
    ///
    /// # Errors
    /// The kernel refuses, also if the interface has no clsact.
    pub fn redirects(index: u32) -> Result<bool, Error> {
        Self::open()?.has_redirection(index)
    }

    fn has_redirection(&self, index: u32) -> Result<bool, Error> {
        let rule = RouteNetlinkMessage::GetTrafficFilter(redirection(index, REDIRECTION));
        self.redirection("get the redirection of", index, rule)
    }

    /// Sends the request about the redirecting rule. `false`: there is no such filter or no such interface.
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

    /// The rules, in their order. `None` stands for a rule that [`Netlink::set_rules`] does not make.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn rules(&self, index: u32) -> Result<Vec<Option<Rule>>, Error> {
        let asked =
            RouteNetlinkMessage::GetTrafficFilter(message(index, ARRIVING, TcHandle::UNSPEC));
        let found = self.dump("list filters of", &By::Index(index), &asked)?;
        let found = found.into_iter().filter_map(|it| match it {
            RouteNetlinkMessage::NewTrafficFilter(filter) => Some(filter),
            _ => None,
        });
        // The kernel also lists each classifier once without its filters.
        let mut found: Vec<_> = found.filter(|it| options_of(it).is_some()).collect();
        found.sort_by_key(|it| it.header.info >> 16);
        Ok(found.iter().map(rule_of).collect())
    }
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
        // The kernel accepts a VLAN id only together with the EtherType of a tag.
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
    // Only a flower filter can be deleted without the lock, see [`Netlink::delete_redirect`].
    if action != Action::Drop {
        message.header.handle = REDIRECTION;
    }
    // Without this flag the driver of a card would delete its copy of the rule under the lock.
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

/// The `tc_gen` at the beginning of each action's parameters: index, capabilities, action, two counts.
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

/// The rule in a message. `None`: this crate makes no such rule.
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
                TcActionOption::Other(it) => (it.kind() == number).then(|| value_of(it)),
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

    use super::{super::kind_of, *};

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
            // The kernel needs its lock of network devices to delete a rule of another kind.
            let redirects = rule.1 != Action::Drop;
            assert!(!redirects || kind_of(&read) == Some("flower"), "{rule:?}");
        }
    }
}
