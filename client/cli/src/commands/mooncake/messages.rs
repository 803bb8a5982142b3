//! The JSON of the handshake. Fields that are not listed here, such as those of later versions, are passed over.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What a client says of itself when it asks for the descriptor of a segment: its own descriptor.
#[derive(Debug, Deserialize)]
pub(super) struct Asking {
    /// Where it listens, `ADDR:PORT`.
    pub(super) name: String,
    #[serde(default)]
    pub(super) devices: Vec<Named>,
}

/// The name of a device.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

/// The queue pairs of one side, in a message of type Connection and in its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueuePairs {
    /// `ADDR:PORT@DEVICE` of the side that speaks.
    pub(super) local_nic_path: String,
    pub(super) local_lid: u16,
    /// 16 bytes in hexadecimal, with colons.
    pub(super) local_gid: String,
    /// `ADDR:PORT@DEVICE` of the side that is spoken to.
    pub(super) peer_nic_path: String,
    pub(super) qp_num: Vec<u32>,
    /// Why the answer is a refusal; empty if it is none.
    #[serde(default)]
    pub(super) reply_msg: String,
    /// True in the message with which a client confirms an answer that has this field. Ours never have it.
    #[serde(default, skip_serializing)]
    pub(super) ready_ack: bool,
}

/// What a client gets to know of a segment.
#[derive(Debug, Serialize)]
pub(super) struct Descriptor<'a> {
    pub(super) name: &'a str,
    pub(super) protocol: &'static str,
    pub(super) tcp_data_port: u16,
    pub(super) devices: [Device<'a>; 1],
    pub(super) buffers: [Buffer; 1],
    /// For each place of memory: the devices to prefer, and the others.
    pub(super) priority_matrix: Priorities<'a>,
}

#[derive(Debug, Serialize)]
pub(super) struct Device<'a> {
    pub(super) name: &'a str,
    pub(super) lid: u16,
    pub(super) gid: String,
}

/// A stretch of memory, with a key for each device.
#[derive(Debug, Serialize)]
pub(super) struct Buffer {
    pub(super) name: &'static str,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) rkey: [u32; 1],
    pub(super) lkey: [u32; 1],
}

#[derive(Debug, Serialize)]
pub(super) struct Priorities<'a> {
    #[serde(rename = "cpu:0")]
    pub(super) place: (Vec<&'a str>, Vec<&'a str>),
}

/// The answer to a Notify.
#[derive(Debug, Serialize)]
pub(super) struct Notified {
    pub(super) name: &'static str,
    pub(super) notify_msg: &'static str,
}

/// The answer to a Probe.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Probed {
    #[serde(default)]
    pub(super) status: String,
}

/// Parses a message; the error says what is wrong with it.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json)
        .map_err(|error| format!("a message is not what Mooncake 0.3.13 sends: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_later_versions_are_passed_over() {
        let json = br#"{"local_nic_path":"a:1@b","local_lid":0,"local_gid":"","peer_nic_path":"","qp_num":[7],
            "payload":"","ready_ack":false,"efa_addr":{"deep":[1]}}"#;
        let pairs: QueuePairs = parse(json).unwrap();
        assert_eq!(pairs.qp_num, [7]);
        let asking: Asking = parse(br#"{"name":"a:1","buffers":[{"rkey":[1]}]}"#).unwrap();
        assert_eq!(asking.name, "a:1");
    }

    #[test]
    fn what_is_no_message_has_an_error_and_never_panics() {
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        let deep_field = [br#"{"x":"#.as_slice(), &deep, b"}"].concat();
        let bad: [&[u8]; 8] = [
            b"",
            b"{",
            b"null",
            b"\xff\xfe",
            &deep,
            &deep_field,
            br#"{"name":7}"#,
            br#"{"name":"a","devices":{}}"#,
        ];
        for json in bad {
            let error = parse::<Asking>(json).unwrap_err();
            assert!(error.contains("0.3.13"), "{error}");
            parse::<QueuePairs>(json).unwrap_err();
        }
        let path = r#""local_nic_path":"a","local_lid":0,"local_gid":"","peer_nic_path":"","#;
        for qp_num in ["-1", "4294967296", "1.5", "\"7\""] {
            let json = format!("{{{path}\"qp_num\":[{qp_num}]}}");
            parse::<QueuePairs>(json.as_bytes()).unwrap_err();
        }
    }
}
