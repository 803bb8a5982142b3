//! The golden vectors: the code writes the same bytes and reads the same meaning.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

#[path = "../examples/vectors/cases/mod.rs"]
mod cases;
#[path = "../examples/vectors/data_plane.rs"]
mod data_plane;
#[path = "../examples/vectors/samples.rs"]
mod samples;

use std::{collections::BTreeMap, fs, path::Path};

use base16ct::lower::decode_vec;
use cases::json;
use fabricbios_wire::*;

const MAKE: &str = "run `cargo run -p fabricbios-wire --example vectors` and review the difference";

fn files() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/vectors/v0");
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read_to_string(entry.path()).unwrap())
    };
    fs::read_dir(&folder)
        .unwrap()
        .map(|entry| read(entry.unwrap()))
        .collect()
}

#[test]
fn the_files_are_those_that_the_code_makes() {
    let made: BTreeMap<_, _> = cases::all()
        .iter()
        .map(|case| (case.file_name(), case.file()))
        .collect();
    assert_eq!(made.len(), cases::all().len(), "two cases have one name");
    assert!(made.len() > 200, "only {} cases", made.len());
    let found = files();
    let names = |set: &BTreeMap<String, String>| set.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&found),
        names(&made),
        "missing or surplus files; {MAKE}"
    );
    for (name, text) in &made {
        assert_eq!(&found[name], text, "{name} differs; {MAKE}");
    }
}

#[test]
fn every_file_means_what_it_says() {
    let files = files();
    assert!(files.len() > 200, "only {} vectors found", files.len());
    for (name, text) in &files {
        let vector = Vector::read(text);
        let decoded = vector.decode();
        let value = decoded.as_ref().map(|(value, _)| value.as_str());
        assert_eq!(value.map_err(|error| *error), vector.expected(), "{name}");
        if let (Ok((_, again)), "ok") = (decoded, vector.expect.as_str()) {
            assert_eq!(again, vector.bytes, "{name} is encoded differently");
        }
    }
}

#[derive(Default)]
struct Vector {
    kind: String,
    asked: Header,
    expect: String,
    value: String,
    bytes: Vec<u8>,
}

impl Vector {
    fn read(text: &str) -> Self {
        let mut vector = Self::default();
        for line in text.lines() {
            match line
                .strip_prefix("# ")
                .map(|rest| rest.split_once(": ").unwrap())
            {
                Some(("kind", kind)) => vector.kind = kind.to_owned(),
                Some(("asked", asked)) => vector.asked = serde_json::from_str(asked).unwrap(),
                Some(("expect", expect)) => vector.expect = expect.to_owned(),
                Some(("value", value)) => vector.value = value.to_owned(),
                Some(_) => (),
                None => vector.bytes.extend(decode_vec(line).unwrap()),
            }
        }
        vector
    }

    fn expected(&self) -> Result<&str, &str> {
        match self.expect.strip_prefix("refused ") {
            Some(error) => Err(error),
            None => Ok(&self.value),
        }
    }

    /// The meaning of the bytes, and the bytes that the code writes for this meaning.
    fn decode(&self) -> Result<(String, Vec<u8>), &'static str> {
        match self.kind.as_str() {
            "request" => decode_request(&self.bytes)
                .map_err(status)
                .map(|(header, it)| {
                    let again = encode_request(header.request_id, header.nonce, &it);
                    (json(&(header, it)), again)
                }),
            "answer" => decode_answer(&self.asked, &self.bytes)
                .map_err(status)
                .map(|it| (json(&it), encode_answer(&self.asked, &it))),
            "gpu_request" => decode_gpu_request(&self.bytes)
                .map_err(status)
                .map(|(header, it)| {
                    let again = encode_gpu_request(header.request_id, header.nonce, &it);
                    (json(&(header, it)), again)
                }),
            "gpu_answer" => decode_gpu_answer(&self.asked, &self.bytes)
                .map_err(status)
                .map(|it| {
                    let again = encode_gpu_answer(&self.asked, &it);
                    (json(&it), again)
                }),
            "tlv" => self.decode_params(),
            "flat" => decode_flat(&self.bytes)
                .map_err(name)
                .map(|it| (json(&it), encode_flat(&it).unwrap())),
            "structured" => decode_structured(&self.bytes)
                .map_err(name)
                .map(|it| (json(&it), encode_structured(&it).unwrap())),
            "data_request" => data_plane::request(&self.bytes),
            "data_reply" => data_plane::reply(&self.bytes),
            "discovery" => decode_discovery(&self.bytes)
                .map_err(name)
                .map(|it| (json(&it), encode_discovery(&it))),
            other => panic!("a vector of kind {other:?}"),
        }
    }

    /// Decodes the bytes as the params of the smallest LEASE_ALLOC.
    fn decode_params(&self) -> Result<(String, Vec<u8>), &'static str> {
        let length = u32::try_from(self.bytes.len()).unwrap().to_be_bytes();
        let fixed = [
            &[0, 2][..],
            &[0; 16],
            &[0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0, 0, 1, 0, 0, 0, 0],
        ];
        let payload = [&fixed.concat(), &length[..], &self.bytes].concat();
        let alloc = LeaseAllocRequest::parse(&payload).map_err(name)?;
        let value = json(&alloc);
        let frame = encode_request(0, 0, &Request::LeaseAlloc(alloc));
        Ok((value, frame[HEADER_LEN + 38..].to_vec()))
    }
}

fn encode_discovery(datagram: &Discovery<'_>) -> Vec<u8> {
    match datagram {
        Discovery::Solicit(it) => it.encode(),
        Discovery::Signed(it) => {
            let unsigned = it.told.unsigned(it.certificate).unwrap();
            sealed_discovery(&unsigned, it.signature).unwrap()
        }
    }
}

fn status(rejected: Rejected) -> &'static str {
    name(rejected.error)
}

fn name(error: DecodeError) -> &'static str {
    error.lease_error().name()
}
