//! Traffic control: shapes the frames that leave an interface, and drops or redirects the frames that arrive.
//!
//! netlink-packet-route has the messages, flower, matchall and mirred. The options of htb, gact and vlan are encoded
//! here as bytes, in the form of `linux/pkt_sched.h` and `linux/tc_act/`.

mod rules;
mod shaper;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
};

pub use rules::{Action, Frames, Rule, TAGS, Tag};

use super::{By, Error, Netlink};

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

fn value_of(attribute: &DefaultNla) -> Vec<u8> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}

impl Netlink {
    fn add(
        &self,
        step: &'static str,
        by: By<'_>,
        message: RouteNetlinkMessage,
    ) -> Result<(), Error> {
        self.request(step, &by, message, NLM_F_CREATE | NLM_F_EXCL)
            .map(|_| ())
    }
}
