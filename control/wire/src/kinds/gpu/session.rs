//! The frames of a GPU session's operations, see [`GpuRequest`] and [`GpuReply`].

use alloc::{borrow::Cow, vec::Vec};

use crate::{
    DecodeError, DecodeFault, GPU_ARGUMENT_BYTES_MAX, GPU_ARGUMENTS_MAX, GPU_COPY_BYTES_MAX,
    GPU_KERNEL_BYTES_MAX, GPU_MODULE_BYTES_MAX, GPU_UUID_BYTES_MAX, GpuLaunch, GpuMessageType,
    GpuOpened, GpuReply, GpuRequest, GpuSharedCopy, Header, REPLY, RESOURCE_NAME_BYTES_MAX,
    Refusal, Rejected, error,
    frame::{check_reply, frame_writer, seal, split_frame, wrong},
    read::{Decoded, Reader, invalid_args},
    reply::{read_outcome, write_refusal},
    write::Writer,
};

/// A request as a frame. A request that is too long for its length fields becomes a frame without payload, which every
/// node refuses.
#[must_use]
pub fn encode_gpu_request(request_id: u32, nonce: u64, request: &GpuRequest) -> Vec<u8> {
    let header = Header {
        flags: 0,
        msg_type: request.message_type() as u16,
        request_id,
        nonce,
        payload_len: 0,
    };
    let mut w = frame_writer();
    write(&mut w, request);
    seal(header, w).unwrap_or_else(|| header.to_bytes().to_vec())
}

/// Reads a whole request, without the data that follows it.
///
/// # Errors
/// If the frame is no valid request.
pub fn decode_gpu_request(frame: &[u8]) -> Result<(Header, GpuRequest), Rejected> {
    let (header, payload) = split_frame(frame)?;
    let rejected = |error| Rejected {
        header: Some(header),
        error,
    };
    if header.flags != 0 {
        let got = Cow::Borrowed("0x80, a reply");
        let error = wrong(DecodeFault::Unsupported, 1, "flags", "0x00", got);
        return Err(rejected(error));
    }
    let message_type = message_type(&header).map_err(rejected)?;
    let mut r = Reader::new(payload, crate::HEADER_LEN);
    let request = read(message_type, &mut r).map_err(rejected)?;
    r.finish().map_err(rejected)?;
    Ok((header, request))
}

/// The answer to `to`. Data of a read follows it.
#[must_use]
pub fn encode_gpu_answer(to: &Header, answer: &Result<GpuReply, Refusal>) -> Vec<u8> {
    let header = Header {
        flags: REPLY,
        payload_len: 0,
        ..*to
    };
    let mut w = frame_writer();
    match answer {
        Ok(reply) => write_reply(&mut w, reply),
        Err(refusal) => write_refusal(&mut w, refusal),
    }
    seal(header, w).unwrap_or_else(|| header.to_bytes().to_vec())
}

/// Reads a whole answer to `asked`, without the data that follows it.
///
/// # Errors
/// If the frame is no valid answer, or answers another request.
pub fn decode_gpu_answer(
    asked: &Header,
    frame: &[u8],
) -> Result<Result<GpuReply, Refusal>, Rejected> {
    let (header, payload) = split_frame(frame)?;
    let rejected = |error| Rejected {
        header: Some(header),
        error,
    };
    check_reply(asked, &header).map_err(rejected)?;
    let mut r = Reader::new(payload, crate::HEADER_LEN);
    let answer = read_outcome(&mut r, |r| read_reply(message_type(&header)?, r));
    let answer = answer.map_err(rejected)?;
    r.finish().map_err(rejected)?;
    Ok(answer)
}

fn message_type(header: &Header) -> Result<GpuMessageType, DecodeError> {
    GpuMessageType::from_code(header.msg_type).ok_or_else(|| {
        let got = Cow::Owned(alloc::format!("0x{:04x}", header.msg_type));
        let expected = "an operation of a GPU session, 0x0601 to 0x060d";
        wrong(DecodeFault::Unsupported, 2, "msg_type", expected, got)
    })
}

fn read(message_type: GpuMessageType, r: &mut Reader<'_>) -> Decoded<GpuRequest> {
    use GpuMessageType as M;
    Ok(match message_type {
        M::SessionOpen => GpuRequest::Open {
            lease_id: r.lease_id()?,
            session: r.u64("session")?,
        },
        M::MemAlloc => GpuRequest::MemAlloc {
            bytes: at_least_1(r, "bytes")?,
        },
        M::MemWrite => GpuRequest::MemWrite {
            memory: r.u64("memory")?,
            offset: r.u64("offset")?,
            length: length(r, GPU_COPY_BYTES_MAX)?,
        },
        M::ModuleLoad => GpuRequest::ModuleLoad {
            length: length(r, GPU_MODULE_BYTES_MAX)?,
        },
        M::Launch => GpuRequest::Launch(read_launch(r)?),
        M::Sync => GpuRequest::Sync {
            whole_session: r.flag("whole_session")?,
        },
        M::MemRead => GpuRequest::MemRead {
            memory: r.u64("memory")?,
            offset: r.u64("offset")?,
            length: length(r, GPU_COPY_BYTES_MAX)?,
        },
        M::MemFree => GpuRequest::MemFree {
            memory: r.u64("memory")?,
        },
        M::ModuleUnload => GpuRequest::ModuleUnload {
            module: r.u64("module")?,
        },
        M::SessionClose => GpuRequest::Close,
        M::MemShare => GpuRequest::MemShare {
            length: at_least_1(r, "length")?,
        },
        M::MemWriteShared => GpuRequest::MemWriteShared(read_shared_copy(r)?),
        M::MemReadShared => GpuRequest::MemReadShared(read_shared_copy(r)?),
    })
}

fn at_least_1(r: &mut Reader<'_>, field: &'static str) -> Decoded<u64> {
    let at = r.offset();
    match r.u64(field)? {
        0 => Err(invalid_args(at, field, "at least 1", Cow::Borrowed("0"))),
        value => Ok(value),
    }
}

fn length(r: &mut Reader<'_>, max: u32) -> Decoded<u32> {
    let at = r.offset();
    match r.u32("length")? {
        length if (1..=max).contains(&length) => Ok(length),
        other => {
            let expected = alloc::format!("1 to {max}");
            Err(invalid_args(at, "length", expected, error::number(other)))
        }
    }
}

fn read_launch(r: &mut Reader<'_>) -> Decoded<GpuLaunch> {
    let module = r.u64("module")?;
    let at = r.offset();
    let kernel = r.text(GPU_KERNEL_BYTES_MAX, "kernel")?;
    if kernel.is_empty() || kernel.contains('\0') {
        let expected = "a name of 1 to 255 bytes without a zero byte";
        let got = Cow::Borrowed("something else");
        return Err(invalid_args(at, "kernel", expected, got));
    }
    let mut three = |field| Decoded::Ok([r.u32(field)?, r.u32(field)?, r.u32(field)?]);
    Ok(GpuLaunch {
        module,
        kernel,
        grid: three("grid")?,
        block: three("block")?,
        shared_bytes: r.u32("shared_bytes")?,
        arguments: r.list(GPU_ARGUMENTS_MAX, 4, "arguments", |r| {
            let at = r.offset();
            match r.bytes(GPU_ARGUMENT_BYTES_MAX, "argument")? {
                [] => {
                    let got = error::bytes(0);
                    Err(invalid_args(at, "argument", "1 to 4096 bytes", got))
                }
                bytes => Ok(bytes.to_vec()),
            }
        })?,
    })
}

fn read_shared_copy(r: &mut Reader<'_>) -> Decoded<GpuSharedCopy> {
    Ok(GpuSharedCopy {
        memory: r.u64("memory")?,
        offset: r.u64("offset")?,
        shared_offset: r.u64("shared_offset")?,
        length: at_least_1(r, "length")?,
    })
}

fn write(w: &mut Writer, request: &GpuRequest) {
    match request {
        GpuRequest::Open { lease_id, session } => w.u128(lease_id.0).u64(*session),
        GpuRequest::MemAlloc { bytes } => w.u64(*bytes),
        GpuRequest::MemWrite {
            memory,
            offset,
            length,
        }
        | GpuRequest::MemRead {
            memory,
            offset,
            length,
        } => w.u64(*memory).u64(*offset).u32(*length),
        GpuRequest::ModuleLoad { length } => w.u32(*length),
        GpuRequest::Launch(launch) => {
            w.u64(launch.module).bytes(launch.kernel.as_bytes());
            for number in launch.grid.iter().chain(&launch.block) {
                w.u32(*number);
            }
            w.u32(launch.shared_bytes)
                .list(&launch.arguments, GPU_ARGUMENTS_MAX, |w, argument| {
                    w.bytes(argument);
                })
        }
        GpuRequest::Sync { whole_session } => w.flag(*whole_session),
        GpuRequest::MemFree { memory } => w.u64(*memory),
        GpuRequest::ModuleUnload { module } => w.u64(*module),
        GpuRequest::Close => w,
        GpuRequest::MemShare { length } => w.u64(*length),
        GpuRequest::MemWriteShared(copy) | GpuRequest::MemReadShared(copy) => w
            .u64(copy.memory)
            .u64(copy.offset)
            .u64(copy.shared_offset)
            .u64(copy.length),
    };
}

fn read_reply(message_type: GpuMessageType, r: &mut Reader<'_>) -> Decoded<GpuReply> {
    use GpuMessageType as M;
    Ok(match message_type {
        M::SessionOpen => GpuReply::Opened(GpuOpened {
            session: at_least_1(r, "session")?,
            vram_bytes: r.u64("vram_bytes")?,
            vram_used: r.u64("vram_used")?,
            queue_slots: r.u16("queue_slots")?,
            device: r.text(RESOURCE_NAME_BYTES_MAX, "device")?,
            uuid: r.text(GPU_UUID_BYTES_MAX, "uuid")?,
        }),
        M::MemAlloc => GpuReply::Memory {
            memory: r.u64("memory")?,
            address: r.u64("address")?,
        },
        M::ModuleLoad => GpuReply::Module {
            module: r.u64("module")?,
        },
        M::MemRead => GpuReply::Data {
            length: length(r, GPU_COPY_BYTES_MAX)?,
        },
        M::SessionClose => GpuReply::Closed {
            wiped_bytes: r.u64("wiped_bytes")?,
            free_bytes: r.u64("free_bytes")?,
        },
        M::MemWrite
        | M::Launch
        | M::Sync
        | M::MemFree
        | M::ModuleUnload
        | M::MemShare
        | M::MemWriteShared
        | M::MemReadShared => GpuReply::Done,
    })
}

fn write_reply(w: &mut Writer, reply: &GpuReply) {
    w.u16(0);
    match reply {
        GpuReply::Opened(opened) => w
            .u64(opened.session)
            .u64(opened.vram_bytes)
            .u64(opened.vram_used)
            .u16(opened.queue_slots)
            .text(&opened.device, RESOURCE_NAME_BYTES_MAX)
            .text(&opened.uuid, GPU_UUID_BYTES_MAX),
        GpuReply::Memory { memory, address } => w.u64(*memory).u64(*address),
        GpuReply::Module { module } => w.u64(*module),
        GpuReply::Data { length } => w.u32(*length),
        GpuReply::Closed {
            wiped_bytes,
            free_bytes,
        } => w.u64(*wiped_bytes).u64(*free_bytes),
        GpuReply::Done => w,
    };
}
