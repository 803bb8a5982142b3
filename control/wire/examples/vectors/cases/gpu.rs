//! Operations of GPU sessions, and bindings of GPUs.

use fabricbios_wire::*;

use super::{bad_answers::damaged_lease, *};
use crate::samples;

pub(crate) fn sessions(c: &mut Vec<Case>) {
    for (word, request) in samples::gpu_requests() {
        let bytes = encode_gpu_request(REQUEST_ID, NONCE, &request);
        let header = asked_by(request.message_type() as u16);
        let value = framed(header, &bytes, &request);
        let about = format!("{:?}", request.message_type());
        let name = format!("gpu_request_{word}");
        good(c, &name, Kind::GpuRequest, &about, bytes, value);
    }
    for (word, message, answer) in samples::gpu_answers() {
        let asked = asked_by(message as u16);
        let bytes = encode_gpu_answer(&asked, &answer);
        let value = json(&answer);
        let (name, about) = (format!("gpu_answer_{word}"), format!("{message:?}"));
        good(c, &name, Kind::GpuAnswer(asked), &about, bytes, value);
    }
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_sessions(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, Malformed, Unsupported};
    for (word, request) in samples::gpu_requests() {
        let bytes = encode_gpu_request(REQUEST_ID, NONCE, &request);
        let (code, payload) = (request.message_type() as u16, &bytes[HEADER_LEN..]);
        let name = |what: &str| format!("bad_gpu_request_{word}_{what}");
        if let Some((_, cut)) = payload.split_last() {
            bad(c, &name("cut"), Kind::GpuRequest, "the last byte is missing", frame(0, code, cut), Malformed);
        }
        let long = [payload, &[0]].concat();
        bad(c, &name("long"), Kind::GpuRequest, "a byte too many", frame(0, code, &long), Malformed);
    }
    let mut add = |name: &str, about: &str, code: u16, payload: &[u8], error| {
        let bytes = frame(0, code, payload);
        bad(c, &format!("bad_gpu_request_{name}"), Kind::GpuRequest, about, bytes, error);
    };
    for code in [0x0600, 0x060E, 0x0200] {
        add(&format!("type_{code:04x}"), "no operation of a session", code, &[], Unsupported);
    }
    add("open_zero_lease", "a lease id of zero", 0x0601, &[0; 24], InvalidArgs);
    add("mem_alloc_0", "no byte", 0x0602, &[0; 8], InvalidArgs);
    let copy = |length: u32| [&[1; 16][..], &length.to_be_bytes()].concat();
    for (word, code) in [("write", 0x0603), ("read", 0x0607)] {
        add(&format!("mem_{word}_0"), "no byte", code, &copy(0), InvalidArgs);
        add(&format!("mem_{word}_over"), "one byte more than a copy has", code, &copy(GPU_COPY_BYTES_MAX + 1), InvalidArgs);
    }
    add("module_0", "no byte", 0x0604, &[0; 4], InvalidArgs);
    add("module_over", "one byte more than a module has", 0x0604, &(GPU_MODULE_BYTES_MAX + 1).to_be_bytes(), InvalidArgs);
    add("sync_2", "neither one nor all", 0x0606, &[2], InvalidArgs);
    add("mem_share_0", "no byte", 0x060B, &[0; 8], InvalidArgs);
    for code in [0x060C, 0x060D] {
        let copy = [&[1; 24][..], &[0; 8]].concat();
        add(&format!("shared_0_{code:04x}"), "no byte", code, &copy, InvalidArgs);
    }
    let launch = |kernel: &[u8], arguments: &[u8]| {
        let length = u32::try_from(kernel.len()).unwrap_or(u32::MAX).to_be_bytes();
        [&[1; 8][..], &length, kernel, &[1; 28], arguments].concat()
    };
    add("launch_no_name", "an empty name", 0x0605, &launch(b"", &[0, 0]), InvalidArgs);
    add("launch_name_256", "one byte too many", 0x0605, &launch(&[b'k'; 256], &[0, 0]), Malformed);
    add("launch_name_zero", "a zero byte", 0x0605, &launch(b"a\0b", &[0, 0]), InvalidArgs);
    add("launch_name_not_utf8", "0xff", 0x0605, &launch(b"\xff", &[0, 0]), Malformed);
    add("launch_argument_empty", "an argument without a byte", 0x0605, &launch(b"k", &[0, 1, 0, 0, 0, 0]), InvalidArgs);
    let long = [&[0, 1, 0, 0, 16, 1][..], &[7; 4_097]].concat();
    add("launch_argument_4097", "one byte too many", 0x0605, &launch(b"k", &long), Malformed);
    let many = [&[1, 1][..], &[0, 0, 0, 1, 7].repeat(257)].concat();
    add("launch_arguments_257", "one argument too many", 0x0605, &launch(b"k", &many), Malformed);
    add("launch_arguments_absurd", "arguments that are not there", 0x0605, &launch(b"k", &[0, 200]), Malformed);
    let reply = frame(REPLY, 0x060A, &[]);
    bad(c, "bad_gpu_request_reply", Kind::GpuRequest, "a reply where a request belongs", reply, Unsupported);
    let mut add = |name: &str, about: &str, message: GpuMessageType, payload: &[u8], error| {
        let asked = asked_by(message as u16);
        let bytes = frame(REPLY, message as u16, payload);
        bad(c, &format!("bad_gpu_answer_{name}"), Kind::GpuAnswer(asked), about, bytes, error);
    };
    use GpuMessageType as M;
    let opened = |session: u8| [&[0; 9][..], &[session], &[0; 18], &[0; 8]].concat();
    add("session_0", "a session of zero", M::SessionOpen, &opened(0), InvalidArgs);
    add("opened_cut", "without a uuid", M::SessionOpen, &opened(1)[..32], Malformed);
    add("done_long", "a byte too many", M::Launch, &[0, 0, 1], Malformed);
    add("status_15", "an unknown status", M::Sync, &[0, 15], InvalidArgs);
    add("data_0", "no byte", M::MemRead, &[0; 6], InvalidArgs);
    let other = frame(REPLY, M::MemFree as u16, &[0, 0]);
    let asked = asked_by(M::MemAlloc as u16);
    bad(c, "bad_gpu_answer_other", Kind::GpuAnswer(asked), "to another operation", other, Malformed);
}

#[rustfmt::skip] // One case a line.
pub(crate) fn bad_bindings(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut gpu = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let bytes = damaged_lease(samples::gpu_lease(true), tag, instead);
        bad(c, &format!("bad_answer_gpu_{name}"), kind, about, bytes, LeaseError::InvalidIntent);
    };
    for missing in [0x0501, 0x0502, 0x0503, 0x0507] {
        gpu(&format!("without_{missing:04x}"), "a GPU tag is missing", missing, &[]);
    }
    let endpoint = [&samples::gid(7)[..], &[0x16, 0x45]].concat();
    for (tag, value) in [
        (0x0501, &b"GPU-1"[..]),
        (0x0502, &[0]),
        (0x0503, &[1; 8]),
        (0x0504, &endpoint),
        (0x0505, b"a/b=c"),
        (0x0506, &[0, 1]),
        (0x0507, &[0, 1]),
        (0x090C, &[0]),
        (0x090D, &[0, 1]),
    ] {
        gpu(&format!("twice_{tag:04x}"), "the tag again", tag, &tlv(tag, value).repeat(2));
        // Texts have no fixed length.
        if !matches!(tag, 0x0501 | 0x0505) {
            let long = [value, &[0]].concat();
            gpu(&format!("long_{tag:04x}"), "a byte too many", tag, &tlv(tag, &long));
        }
    }
    gpu("uuid_empty", "no uuid", 0x0501, &tlv(0x0501, b""));
    gpu("uuid_97", "one byte too many", 0x0501, &tlv(0x0501, &[b'G'; 97]));
    gpu("uuid_space", "two words", 0x0501, &tlv(0x0501, b"GPU 1"));
    gpu("vendor_02", "an unknown vendor", 0x0502, &tlv(0x0502, &[2]));
    gpu("endpoint_wildcard", "no address", 0x0504, &tlv(0x0504, &[&[0; 16][..], &[1, 1]].concat()));
    gpu("cdi_129", "one byte too many", 0x0505, &tlv(0x0505, &[b'a'; 129]));
    gpu("slices_0", "no slice", 0x0506, &tlv(0x0506, &[0, 0]));
    gpu("echo_execution_mode_02", "a reserved byte fails closed", 0x090C, &tlv(0x090C, &[2]));
    gpu("echo_slices_0", "no slice", 0x090D, &tlv(0x090D, &[0, 0]));
}
