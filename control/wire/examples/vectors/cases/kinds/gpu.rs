//! GPUs: their leases, and the operations of sessions.

use super::*;

pub(crate) fn cases(c: &mut Vec<Case>) {
    let plain = &samples::alloc(ResourceType::Mem);
    terms(c, plain);
    bad_terms(c);
    leases(c);
    bad_leases(c);
    sessions(c);
    bad_sessions(c);
}

#[rustfmt::skip] // One case a line.
fn terms(c: &mut Vec<Case>, plain: &LeaseAllocRequest) {
    for class in GpuExclusivityClass::ALL {
        let alloc = plain.clone().with_terms(gpu(*class));
        params(c, &format!("gpu_exclusivity_{class}"), "003 §2.1", &alloc);
    }
    let alloc = plain.clone().with_terms(full_gpu());
    params(c, "gpu_full", "everything that can be asked of a GPU", &alloc);
    for mode in GpuExecutionMode::ALL {
        let terms = GpuTerms {
            execution_mode: Some(*mode),
            ..GpuTerms::default()
        };
        let alloc = plain.clone().with_terms(terms);
        params(c, &format!("gpu_execution_mode_{mode}"), "001 §5.2", &alloc);
    }
}

#[rustfmt::skip] // One case a line.
fn bad_terms(c: &mut Vec<Case>) {
    bad_tlv(c, "gpu_compute_slices_0", "no slice", tlv(0x090D, &[0, 0]));
    bad_tlv(c, "gpu_compute_slices_length_1", "length 1", tlv(0x090D, &[1]));
    bad_tlv(c, "gpu_compute_slices_length_3", "length 3", tlv(0x090D, &[0, 1, 0]));
    bad_tlv(c, "gpu_compute_slices_twice", "the tag again", tlv(0x090D, &[0, 1]).repeat(2));
}

#[rustfmt::skip] // One case a line.
fn leases(c: &mut Vec<Case>) {
    use MessageType as M;
    let about = "a lease of a GPU";
    answer(c, "lease_gpu_full", about, M::LeaseQuery, Reply::Lease(gpu_lease(true)));
    answer(c, "lease_gpu", about, M::LeaseQuery, Reply::Lease(gpu_lease(false)));
}

#[rustfmt::skip] // One case a line.
fn bad_leases(c: &mut Vec<Case>) {
    let kind = Kind::Answer(asked(MessageType::LeaseQuery));
    let mut gpu = |name: &str, about: &str, tag: u16, instead: &[u8]| {
        let bytes = damaged_lease(gpu_lease(true), tag, instead);
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

fn sessions(c: &mut Vec<Case>) {
    for (word, request) in gpu_requests() {
        let bytes = encode_gpu_request(REQUEST_ID, NONCE, &request);
        let header = asked_by(request.message_type() as u16);
        let value = framed(header, &bytes, &request);
        let about = format!("{:?}", request.message_type());
        let name = format!("gpu_request_{word}");
        good(c, &name, Kind::GpuRequest, &about, bytes, value);
    }
    for (word, message, answer) in gpu_answers() {
        let asked = asked_by(message as u16);
        let bytes = encode_gpu_answer(&asked, &answer);
        let value = json(&answer);
        let (name, about) = (format!("gpu_answer_{word}"), format!("{message:?}"));
        good(c, &name, Kind::GpuAnswer(asked), &about, bytes, value);
    }
}

#[rustfmt::skip] // One case a line.
fn bad_sessions(c: &mut Vec<Case>) {
    use LeaseError::{InvalidArgs, Malformed, Unsupported};
    for (word, request) in gpu_requests() {
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

pub(crate) fn gpu(class: GpuExclusivityClass) -> GpuTerms {
    GpuTerms {
        exclusivity: Some(class),
        ..GpuTerms::default()
    }
}

/// Every term for a GPU.
pub(crate) fn full_gpu() -> GpuTerms {
    GpuTerms {
        exclusivity: Some(GpuExclusivityClass::Shared),
        execution_mode: Some(GpuExecutionMode::OneShot),
        compute_slices: Some(0x0304),
    }
}

/// A lease of a GPU: with every part (`full`), or only with the parts that every such lease has.
pub(crate) fn gpu_lease(full: bool) -> LeaseInfo {
    let uuid = "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901".to_owned();
    let binding = GpuBinding {
        uuid: if full {
            "MIG-".to_owned() + &uuid
        } else {
            uuid
        },
        vendor: if full {
            GpuVendor::Nvidia
        } else {
            GpuVendor::Amd
        },
        vram_bytes: 0x0002_0304_0506_0708,
        session_endpoint: full.then_some(Endpoint {
            addr: gid(7),
            port: 5701,
        }),
        cdi_device: full.then(|| "fabricbios/gpu=10111213".to_owned()),
        compute_slices: full.then_some(0x0304),
        queue_slots: 16,
    };
    LeaseInfo {
        effective: Effective {
            gpu_exclusivity: Some(GpuExclusivityClass::Shared),
            gpu_execution_mode: full.then_some(GpuExecutionMode::Session),
            gpu_compute_slices: full.then_some(0x0304),
            ..Effective::default()
        },
        ..lease(Binding {
            kind: KindBinding::Gpu(Some(Box::new(binding))),
            ..Binding::plain(ResourceType::Gpu)
        })
    }
}

/// Every operation of a GPU session, with the word for it.
pub(crate) fn gpu_requests() -> Vec<(&'static str, GpuRequest)> {
    let (memory, module) = (0x5152_5354_0000_0001, 0x5152_5354_0000_0002);
    let copy = GpuSharedCopy {
        memory,
        offset: 0x0102_0304_0506_0708,
        shared_offset: 0x1112_1314_1516_1718,
        length: 0x2122_2324_2526_2728,
    };
    let (offset, length) = (copy.offset, GPU_COPY_BYTES_MAX);
    let launch = GpuLaunch {
        module,
        kernel: "vector_add".to_owned(),
        grid: [0x0102_0304, 2, 3],
        block: [256, 0x0506, 7],
        shared_bytes: 0x0001_0000,
        arguments: vec![vec![0x88; 8], vec![1], (0..=255).collect()],
    };
    let plain = GpuLaunch {
        kernel: "é".to_owned(),
        arguments: vec![],
        ..launch.clone()
    };
    vec![
        (
            "open",
            GpuRequest::Open {
                lease_id: LEASE,
                session: 0,
            },
        ),
        (
            "open_again",
            GpuRequest::Open {
                lease_id: LEASE,
                session: 0x5152_5354_5556_5758,
            },
        ),
        ("mem_alloc", GpuRequest::MemAlloc { bytes: u64::MAX }),
        (
            "mem_write",
            GpuRequest::MemWrite {
                memory,
                offset,
                length,
            },
        ),
        (
            "module_load",
            GpuRequest::ModuleLoad {
                length: GPU_MODULE_BYTES_MAX,
            },
        ),
        ("launch", GpuRequest::Launch(launch)),
        ("launch_plain", GpuRequest::Launch(plain)),
        (
            "sync",
            GpuRequest::Sync {
                whole_session: false,
            },
        ),
        (
            "sync_all",
            GpuRequest::Sync {
                whole_session: true,
            },
        ),
        (
            "mem_read",
            GpuRequest::MemRead {
                memory,
                offset,
                length: 1,
            },
        ),
        ("mem_free", GpuRequest::MemFree { memory }),
        ("module_unload", GpuRequest::ModuleUnload { module }),
        ("close", GpuRequest::Close),
        (
            "mem_share",
            GpuRequest::MemShare {
                length: 0x0001_0203_0405_0607,
            },
        ),
        ("mem_write_shared", GpuRequest::MemWriteShared(copy)),
        ("mem_read_shared", GpuRequest::MemReadShared(copy)),
    ]
}

/// An answer to each kind of operation.
pub(crate) fn gpu_answers() -> Vec<(&'static str, GpuMessageType, Result<GpuReply, Refusal>)> {
    use GpuMessageType as M;
    let opened = GpuOpened {
        session: 0x5152_5354_5556_5758,
        vram_bytes: 0x0002_0304_0506_0708,
        vram_used: 0x0001_0000,
        queue_slots: 16,
        device: "Stand-in GPU \u{e9}".to_owned(),
        uuid: "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901".to_owned(),
    };
    let memory = GpuReply::Memory {
        memory: 0x5152_5354_0000_0001,
        address: 0x0000_7f12_3456_7800,
    };
    let module = GpuReply::Module {
        module: 0x5152_5354_0000_0002,
    };
    let closed = GpuReply::Closed {
        wiped_bytes: 0x0001_0203_0405_0607,
        free_bytes: 0x0001_0203_0405_0608,
    };
    let mut answers = vec![
        ("open", M::SessionOpen, Ok(GpuReply::Opened(opened))),
        ("mem_alloc", M::MemAlloc, Ok(memory)),
        ("module_load", M::ModuleLoad, Ok(module)),
        (
            "mem_read",
            M::MemRead,
            Ok(GpuReply::Data {
                length: GPU_COPY_BYTES_MAX,
            }),
        ),
        ("close", M::SessionClose, Ok(closed)),
        (
            "refused",
            M::MemAlloc,
            Err(Refusal::new(
                LeaseError::CapacityExceeded,
                RefusalClass::Permanent,
                "the lease has 1048576 bytes",
            )),
        ),
    ];
    for (word, message) in [
        ("mem_write", M::MemWrite),
        ("launch", M::Launch),
        ("sync", M::Sync),
        ("mem_free", M::MemFree),
        ("module_unload", M::ModuleUnload),
        ("mem_share", M::MemShare),
        ("mem_write_shared", M::MemWriteShared),
        ("mem_read_shared", M::MemReadShared),
    ] {
        answers.push((word, message, Ok(GpuReply::Done)));
    }
    answers
}
