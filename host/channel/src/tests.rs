mod descriptors;

use std::{
    fs::{self, File},
    io::Write,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use nix::sys::socket::MsgFlags;
use serde::{Deserialize, Serialize};

use crate::{Channel, ChannelKind, Incoming, Outgoing, Problem};

const KIND: ChannelKind = ChannelKind {
    name: "test",
    frame_bytes_max: 1 << 20,
    passes_descriptors: false,
};
const PASSES: ChannelKind = ChannelKind {
    passes_descriptors: true,
    ..KIND
};

const NOW: MsgFlags = MsgFlags::MSG_DONTWAIT;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Message {
    Nothing,
    Text(String),
}

fn text(length: usize) -> Message {
    Message::Text("x".repeat(length))
}

/// A channel, and the bare socket of its other end.
fn half(kind: ChannelKind) -> (Channel, UnixStream) {
    let (channel, other) = Channel::pair(kind).unwrap();
    (channel, other.into())
}

fn received(channel: &mut Channel) -> Option<Message> {
    channel.receive().unwrap()
}

fn problem(channel: &mut Channel) -> Problem {
    channel.receive::<Message>().unwrap_err().problem
}

/// The bytes of these messages.
fn bytes(messages: &[Message]) -> Vec<u8> {
    let mut outgoing = Outgoing::new(KIND);
    messages.iter().for_each(|it| outgoing.push(it).unwrap());
    outgoing.unsent().to_vec()
}

#[test]
fn messages_arrive_in_order_and_then_the_end() {
    let (mut channel, other) = half(KIND);
    let (mut other, all) = (
        Channel::over(KIND, other),
        [text(0), Message::Nothing, text(70_000)],
    );
    for message in &all {
        other.send(message, None, NOW).unwrap();
    }
    channel.send(&text(3), None, NOW).unwrap();
    assert_eq!(received(&mut other), Some(text(3)));
    drop(other);
    assert_eq!(all.each_ref().map(|_| received(&mut channel).unwrap()), all);
    assert_eq!(received(&mut channel), None);
}

#[test]
fn who_is_killed_within_a_message_is_told_from_who_closes_the_channel() {
    let whole = bytes(&[text(9)]);
    for length in 1..whole.len() {
        let (mut channel, mut other) = half(KIND);
        other.write_all(&whole).unwrap();
        other.write_all(&whole[..length]).unwrap();
        drop(other);
        assert_eq!(received(&mut channel), Some(text(9)));
        let problem = problem(&mut channel);
        assert!(
            matches!(problem, Problem::CutOff(it) if it == length),
            "{problem}"
        );
    }
    // Its end may be closed with messages that it has not read.
    let (mut channel, other) = half(KIND);
    channel.send(&text(1), None, NOW).unwrap();
    drop(other);
    assert_eq!(received(&mut channel), None);
}

#[test]
fn who_stops_within_a_message_is_waited_for_no_longer_than_who_says_nothing() {
    let (mut channel, mut other) = half(KIND);
    let whole = bytes(&[text(9)]);
    let mut receive = |patience| channel.receive_within::<Message>(patience);
    assert!(receive(Duration::ZERO).unwrap_err().is_silence());
    other.write_all(&whole[..6]).unwrap();
    let error = receive(Duration::from_millis(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "channel of the test: no message within 1 ms"
    );
    other.write_all(&whole[6..]).unwrap();
    assert_eq!(receive(PATIENCE).unwrap(), Some(text(9)));
}

#[test]
fn a_full_socket_keeps_the_rest_and_the_order() {
    let (mut channel, other) = half(KIND);
    let (mut outgoing, mut count) = (Outgoing::new(KIND), 0);
    let message = |count| Message::Text(format!("{count}"));
    while outgoing.send_to(&other, None, NOW).unwrap() {
        for _ in 0..100 {
            outgoing.push(&message(count)).unwrap();
            count += 1;
        }
    }
    assert!(!outgoing.unsent().is_empty());
    for expected in 0..count {
        assert_eq!(received(&mut channel), Some(message(expected)));
        outgoing.send_to(&other, None, NOW).unwrap();
    }
    assert!(outgoing.unsent().is_empty());
    let (channel, _unread) = half(KIND);
    let full = loop {
        if let Err(error) = channel.send(&text(10_000), None, NOW) {
            break error;
        }
    };
    assert!(matches!(full.problem, Problem::Full), "{full}");
}

#[test]
fn a_length_beyond_the_maximum_is_refused_at_both_ends() {
    let (mut channel, mut other) = half(KIND);
    let error = channel.send(&text(1 << 20), None, NOW).unwrap_err();
    let expected = "channel of the test: a message of 1048580 bytes; 1048576 are allowed";
    assert_eq!(error.to_string(), expected);
    other.write_all(&((1_u32 << 20) + 1).to_le_bytes()).unwrap();
    let problem = problem(&mut channel);
    assert!(
        matches!(problem, Problem::TooLong { length, .. } if length > 1 << 20),
        "{problem}"
    );
}

#[test]
fn what_is_no_message_costs_no_other() {
    let (mut channel, mut other) = half(KIND);
    let surplus = [&[2, 0, 0, 0][..], &[0, 0]].concat();
    let senseless = [&[1, 0, 0, 0][..], &[7]].concat();
    for wrong in [surplus, senseless] {
        other.write_all(&wrong).unwrap();
        other.write_all(&bytes(&[text(2)])).unwrap();
        assert!(channel.receive::<Message>().unwrap_err().is_garbled());
        assert_eq!(received(&mut channel), Some(text(2)));
    }
}

#[test]
fn each_descriptor_comes_with_its_own_message() {
    let (mut channel, other) = half(PASSES);
    let other = Channel::over(PASSES, other);
    let paths = ["/dev/null", "/dev/zero", "/dev/full"];
    for path in paths {
        let file = File::open(path).unwrap();
        other.send(&Message::Nothing, None, NOW).unwrap();
        other.send(&text(20_000), Some(file.as_fd()), NOW).unwrap();
    }
    for path in paths {
        assert_eq!(received(&mut channel), Some(Message::Nothing));
        assert!(channel.take_descriptor().is_none());
        assert_eq!(received(&mut channel), Some(text(20_000)));
        let descriptor = channel.take_descriptor().unwrap();
        let number = descriptor.as_raw_fd();
        let place = fs::read_link(format!("/proc/self/fd/{number}"));
        assert_eq!(place.unwrap(), Path::new(path));
    }
}

#[test]
fn a_descriptor_where_none_belongs_is_refused() {
    let null = File::open("/dev/null").unwrap();
    let (mut channel, other) = half(KIND);
    let other = Channel::over(PASSES, OwnedFd::from(other));
    other
        .send(&Message::Nothing, Some(null.as_fd()), NOW)
        .unwrap();
    let problem = problem(&mut channel);
    assert!(matches!(problem, Problem::Descriptors(_)), "{problem}");
}

#[test]
fn a_length_makes_no_room_for_more_than_comes() {
    let mut incoming = Incoming::new(KIND);
    incoming.push(&(1_u32 << 20).to_le_bytes());
    assert!(incoming.next_message::<Message>().unwrap().is_none());
    assert!(incoming.capacity() < 100, "{}", incoming.capacity());
}
