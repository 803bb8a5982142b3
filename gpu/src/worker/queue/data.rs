//! Operations with data: copies and modules.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use fabricbios_wire::{GpuReply, GpuSharedCopy, Header, Refusal};

use super::{Answered, Queue};
use crate::{
    driver::{DriverError, Shared, Stream},
    worker::{
        refusal::{internal, invalid},
        share,
    },
};

/// Data of a write goes to the device in parts, so that one part is copied while the next part arrives.
const PART_BYTES: usize = 512 << 10;
/// Modules are read in parts of this size, so that memory is allocated only for data that has arrived.
const MODULE_PART_BYTES: usize = 1 << 20;
/// Shared memory that a session may always have, bytes, even if it may allocate less.
const SHARED_BYTES_MIN: u64 = 64 << 20;

impl Queue<'_> {
    /// Reads the data of a write from the client, and begins to copy it. Data of a refused write is read too, because the
    /// next frame follows it.
    pub(super) fn write(&mut self, memory: u64, offset: u64, length: u32) -> Answered {
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        self.expect(left)?;
        let engine = &self.server.engine;
        let mut at = offset;
        let mut checked = engine.copy((memory, offset, length.into()), |_| Ok(()));
        while left > 0 && checked.is_ok() {
            let part = match self.stream.free_part(PART_BYTES.min(left)) {
                Ok(part) => part,
                Err(error) => {
                    checked = Err(self.failed(&error));
                    break;
                }
            };
            self.connection.read(part)?;
            let bytes = part.len();
            let range = (memory, at, bytes as u64);
            checked = engine.copy(range, |address| self.stream.send(address, bytes));
            at += bytes as u64;
            left -= bytes;
        }
        self.connection.discard(left)?;
        Ok(checked.map(|()| GpuReply::Done))
    }

    pub(super) fn read(
        &mut self,
        header: Header,
        memory: u64,
        offset: u64,
        length: u32,
    ) -> io::Result<()> {
        let engine = &self.server.engine;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        // This waits for earlier kernels without the lock.
        let begun = self.synchronize().and_then(|_| {
            let range = (memory, offset, length.into());
            engine.copy(range, |address| self.stream.begin_fetch(address, bytes))
        });
        let fetched = begun.and_then(|()| {
            self.stream
                .fetched(bytes)
                .map_err(|error| engine.failed(&error, internal))
        });
        let (answer, data) = match fetched {
            Ok(data) => (Ok(GpuReply::Data { length }), data),
            Err(refusal) => (Err(refusal), &[][..]),
        };
        self.answers.hold(header, answer);
        self.connection.send(&self.answers.take())?;
        self.connection.send(data)
    }

    pub(super) fn load(&mut self, length: u32) -> Answered {
        let length_max = usize::try_from(length).unwrap_or(usize::MAX);
        self.expect(length_max)?;
        let engine = &self.server.engine;
        if let Err(refusal) = engine.check_image(length) {
            self.connection.discard(length_max)?;
            return Ok(Err(refusal));
        }
        let mut image = Vec::new();
        while image.len() < length_max {
            let before = image.len();
            image.resize(length_max.min(before + MODULE_PART_BYTES), 0);
            self.connection.read(&mut image[before..])?;
        }
        Ok(engine.load(image))
    }

    pub(super) fn share(
        &mut self,
        descriptor: Option<OwnedFd>,
        length: u64,
    ) -> Result<GpuReply, Refusal> {
        let engine = &self.server.engine;
        let Some(file) = descriptor else {
            let why =
                "no descriptor came with the frame: memory is shared on the node's own socket only";
            return Err(invalid(why));
        };
        let most = engine.order.vram_bytes.max(SHARED_BYTES_MIN);
        share::check(file.as_fd(), length, most)?;
        let shared = Shared::map(&engine.context, file.as_fd(), length);
        let shared = shared.and_then(|shared| self.stream.share(shared));
        shared
            .map(|()| GpuReply::Done)
            .map_err(|error| engine.failed(&error, invalid))
    }

    pub(super) fn copy_shared(
        &mut self,
        copy: &GpuSharedCopy,
        begin: impl FnOnce(&mut Stream, u64, u64, u64) -> Result<(), DriverError>,
    ) -> Result<GpuReply, Refusal> {
        let engine = &self.server.engine;
        engine.check_shared(self.stream, copy)?;
        self.synchronize()?;
        let range = (copy.memory, copy.offset, copy.length);
        engine.copy(range, |address| {
            begin(self.stream, address, copy.shared_offset, copy.length)
        })?;
        self.synchronize()
    }
}
