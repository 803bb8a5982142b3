use proptest::prelude::*;

use super::*;

/// A line as perftest prints it.
const TEXT: &str = "0000:0001:000015:9a00fc:00000dd7:00007f1a2b3c4000:\
                    00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\0";

fn line(qpn: u32) -> Vec<u8> {
    let (line, _) = parsed(TEXT.as_bytes()).unwrap();
    Line { qpn, ..line }.bytes()
}

fn version(text: &str) -> Vec<u8> {
    let mut version = text.as_bytes().to_vec();
    version.resize(VERSION_BYTES, 0);
    version
}

/// What a client sends before its lines.
fn opening(of_version: &str) -> Vec<Vec<u8>> {
    let number = |number: u32| number.to_be_bytes().to_vec();
    vec![
        version(of_version),
        number(4_096),
        number(64),
        b"3\0".to_vec(),
    ]
}

fn bandwidth(of_version: &str, qpns: &[u32]) -> Vec<Vec<u8>> {
    let lines = || qpns.iter().map(|qpn| line(*qpn));
    let mut sent = opening(of_version);
    sent.extend(lines().chain(lines()));
    sent.extend([line(qpns[0]), line(qpns[0])]);
    sent.extend([1.5_f64; 5].map(|number| number.to_be_bytes().to_vec()));
    sent.push(line(qpns[0]));
    sent
}

fn latency(of_version: &str) -> Vec<Vec<u8>> {
    let mut sent = opening(of_version);
    sent.extend(std::iter::repeat_n(line(21), 5));
    sent
}

/// Sends messages in pieces of `piece` bytes; returns what was read, or why a message was refused.
fn heard(sent: &[Vec<u8>], piece: usize) -> Result<(Vec<Message>, Handshake), String> {
    let (mut handshake, mut heard) = (Handshake::new(), Vec::new());
    let mut came = Vec::new();
    for piece in sent.concat().chunks(piece) {
        came.extend(piece);
        while let Some((message, length)) = handshake.next(&came)? {
            heard.push(message);
            came.drain(..length);
        }
        assert!(
            came.len() < MESSAGE_MAX,
            "a message is read when it is complete"
        );
    }
    assert!(came.is_empty(), "{} bytes were not read", came.len());
    Ok((heard, handshake))
}

fn refused(sent: &[Vec<u8>]) -> String {
    heard(sent, MESSAGE_MAX).unwrap_err()
}

#[test]
fn the_line_is_read_and_written_as_perftest_does() {
    let (line, shared_queue) = parsed(TEXT.as_bytes()).unwrap();
    assert_eq!((line.max_reads, line.qpn, line.psn), (1, 0x15, 0x9a_00fc));
    assert_eq!((line.rkey, line.addr), (0xdd7, 0x7f1a_2b3c_4000));
    assert_eq!(line.gid[10..], [255, 255, 10, 77, 0, 1]);
    assert_eq!((line.bytes(), shared_queue), (TEXT.as_bytes().to_vec(), 0));
}

#[test]
fn every_tool_is_heard_to_its_end_in_pieces_of_any_length() {
    let done = [bandwidth("6.06", &[21]), vec![DONE.to_vec()]].concat();
    let runs = [
        (done, 1),
        (bandwidth("6.24", &[21]), 1),
        (bandwidth("6.06", &[21, 22, 23]), 3),
        (latency("6.06"), 1),
        (latency("6.24"), 1),
    ];
    for (sent, pairs) in runs {
        for piece in [1, 7, 16, MESSAGE_MAX] {
            let (messages, handshake) = heard(&sent, piece).unwrap();
            assert_eq!(messages.len(), sent.len());
            assert!(handshake.is_complete());
            assert_eq!((handshake.path_mtu, handshake.qpns.len()), (1_024, pairs));
        }
    }
}

#[test]
fn a_client_is_at_its_run_after_it_has_repeated_its_lines() {
    for pairs in [&[21][..], &[21, 22]] {
        let sent = bandwidth("6.06", pairs);
        let first_line = opening("6.06").len();
        let begins = first_line + 2 * pairs.len() + 1;
        for until in first_line..sent.len() {
            let (_, handshake) = heard(&sent[..until], MESSAGE_MAX).unwrap();
            assert_eq!(handshake.is_running(), until >= begins, "{until}");
            assert!(!handshake.is_complete());
        }
    }
}

#[test]
fn a_later_version_is_answered_with_the_last_one_that_is_known() {
    for (its, answer) in [
        ("5.70", "5.70"),
        ("6.24", "6.24"),
        ("6.29", "6.27"),
        ("10.1", "6.27"),
    ] {
        let (messages, _) = heard(&[version(its)], MESSAGE_MAX).unwrap();
        assert_eq!(messages, [Message::Answered(version(answer))]);
    }
}

#[test]
fn the_node_reports_a_run_of_nothing() {
    let (messages, _) = heard(&bandwidth("6.06", &[21]), MESSAGE_MAX).unwrap();
    let zeros = Message::Answered(vec![0; REPORT_BYTES]);
    assert_eq!(messages.iter().filter(|it| **it == zeros).count(), 5);
}

#[test]
fn what_is_not_perftest_is_refused_with_a_reason() {
    let with = |last: &[u8]| [opening("6.06"), vec![last.to_vec()]].concat();
    let text = |from: &str, to: &str| TEXT.replacen(from, to, 1).into_bytes();
    let no_gid = b"0000:0001:000015:9a00fc:00000dd7:00007f1a2b3c4000:00000000\0";
    let nine: Vec<_> = (1..=9).map(line).collect();
    let cases = [
        (vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()], "GET / HTTP"),
        (vec![b"\x16\x03\x01\x02\0".to_vec()], "no perftest client"),
        (vec![vec![0; 16]], "no perftest client"),
        (vec![vec![b'9'; 5_000]], "no perftest client"),
        (vec![version("6.06.1")], "6.06.1"),
        (vec![version("5.60")], "5.70 is the first"),
        (with(b"\0\0\0\0\0\0\0\x10"), "LID"),
        (with(DONE), "LID"),
        (with(no_gid), "-x INDEX"),
        (with(&text("000015", "00001g")), "none of perftest's"),
        (with(&text("000015", "000000")), "none of perftest's"),
        (with(&text(":9a00fc", "9:a00fc")), "none of perftest's"),
        (with(&text(":00000000:\0", ":00000007:\0")), "-c RC"),
        (with(&nine.concat()), "-q 8"),
        (with(&[line(1), line(1), line(2)].concat()), "repeated"),
        (with(&line(1).repeat(6)), "-b with -a"),
    ];
    for (sent, word) in cases {
        let why = refused(&sent);
        assert!(why.contains(word) && !why.contains('\n'), "{word}: {why}");
    }
    let mut mtu = opening("6.06");
    mtu[3] = b"9\0".to_vec();
    assert!(refused(&mtu).contains("path MTU"));
}

/// Bytes of a client with some of them changed, so that later steps see wrong bytes too.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let sent = bandwidth("6.06", &[21, 22]).concat();
    let changes = proptest::collection::vec((0..sent.len(), any::<u8>()), 0..4);
    changes.prop_map(move |changes| {
        let mut sent = sent.clone();
        for (at, byte) in changes {
            sent[at] = byte;
        }
        sent
    })
}

fn reads_without_a_panic(sent: &[u8], piece: usize) {
    let (mut handshake, mut came) = (Handshake::new(), Vec::new());
    for piece in sent.chunks(piece) {
        came.extend(piece);
        loop {
            match handshake.next(&came) {
                Ok(Some((_, length))) => drop(came.drain(..length)),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(came.len() < MESSAGE_MAX, "a full buffer holds a message");
        assert!(handshake.qpns.len() <= PAIRS_MAX);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(sent in proptest::collection::vec(any::<u8>(), 0..400), piece in 1_usize..120) {
        reads_without_a_panic(&sent, piece);
    }

    #[test]
    fn no_changed_conversation_makes_it_panic(sent in changed(), piece in 1_usize..120) {
        reads_without_a_panic(&sent, piece);
    }

    #[test]
    fn a_line_is_read_as_it_is_written(max_reads in 0_u32..0x1_0000, qpn in 1_u32..0x100_0000, psn in 0_u32..0x100_0000,
                                       rkey: u32, addr: u64, gid: [u8; 16]) {
        let line = Line { max_reads, qpn, psn, rkey, addr, gid };
        prop_assert_eq!(parsed(&line.bytes()), Some((line, 0)));
    }
}
