//! Copies to and from the memory of a session.

use fabricbios_wire::{GpuRequest, GpuSharedCopy};

use super::{
    GpuMemory, GpuSession,
    ahead::What,
    copy::{Bytes, Copy, PIECE_BYTES},
    done,
};
use crate::{Error, runtime::wait};

impl GpuSession {
    /// Copies bytes to the device, blocking. After `Ok` all of them are there.
    ///
    /// # Errors
    /// If the session ends, or the range is not within the memory. Any part may have been written then.
    pub fn mem_write(&self, memory: &GpuMemory, offset: u64, from: &[u8]) -> Result<(), Error> {
        wait(self.mem_write_async(memory, offset, from))
    }

    /// Copies bytes to the device; see [`GpuSession::mem_write`].
    ///
    /// # Errors
    /// See [`GpuSession::mem_write`].
    pub async fn mem_write_async(
        &self,
        memory: &GpuMemory,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Error> {
        self.copy(memory, offset, Bytes::Out(from), &mut |_| ())
            .await
    }

    /// Copies bytes to the device, blocking; `progress` gets the number of bytes that are there.
    ///
    /// # Errors
    /// See [`GpuSession::mem_write`].
    pub fn mem_write_with_progress(
        &self,
        memory: &GpuMemory,
        offset: u64,
        from: &[u8],
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        wait(self.copy(memory, offset, Bytes::Out(from), &mut progress))
    }

    /// Sends bytes to the device and does not wait until they are there; later operations on this queue see them. For
    /// short copies between launches: at a local session too, they go through the stream. See [`GpuSession::launch`].
    ///
    /// # Errors
    /// If the range is not within the memory, or the session is over. Other failures are told as those of launches.
    pub fn mem_write_ahead(
        &self,
        memory: &GpuMemory,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Error> {
        wait(self.mem_write_ahead_async(memory, offset, from))
    }

    /// Sends bytes to the device; see [`GpuSession::mem_write_ahead`].
    ///
    /// # Errors
    /// See [`GpuSession::mem_write_ahead`].
    pub async fn mem_write_ahead_async(
        &self,
        memory: &GpuMemory,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Error> {
        let memory = memory.range(&self.queue, offset, from.len() as u64)?;
        let mut offset = offset;
        for piece in from.chunks(PIECE_BYTES) {
            let (bytes, length) = (piece.len(), u32::try_from(piece.len()).unwrap_or(u32::MAX));
            let request = GpuRequest::MemWrite {
                memory,
                offset,
                length,
            };
            let what = What::Copy { offset, bytes };
            self.queue.ask_ahead(&request, piece, what).await?;
            offset += u64::from(length);
        }
        Ok(())
    }

    /// Copies bytes from the device, blocking.
    ///
    /// # Errors
    /// If the session ends, or the range is not within the memory. Some bytes may have been read then.
    pub fn mem_read(&self, memory: &GpuMemory, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        wait(self.mem_read_async(memory, offset, into))
    }

    /// Copies bytes from the device; see [`GpuSession::mem_read`].
    ///
    /// # Errors
    /// See [`GpuSession::mem_read`].
    pub async fn mem_read_async(
        &self,
        memory: &GpuMemory,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Error> {
        self.copy(memory, offset, Bytes::In(into), &mut |_| ())
            .await
    }

    /// Copies bytes from the device, blocking; `progress` gets the number of bytes that were read.
    ///
    /// # Errors
    /// See [`GpuSession::mem_read`].
    pub fn mem_read_with_progress(
        &self,
        memory: &GpuMemory,
        offset: u64,
        into: &mut [u8],
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        wait(self.copy(memory, offset, Bytes::In(into), &mut progress))
    }

    /// Does a copy; repeats it once if the connection to the worker was lost, since a copy can be repeated.
    async fn copy<P: FnMut(u64)>(
        &self,
        memory: &GpuMemory,
        offset: u64,
        mut bytes: Bytes<'_>,
        progress: &mut P,
    ) -> Result<(), Error> {
        let length = match &bytes {
            Bytes::Out(from) => from.len(),
            Bytes::In(into) => into.len(),
        };
        let memory = memory.range(&self.queue, offset, length as u64)?;
        let mut may_repeat = true;
        loop {
            let mut held = self.queue.hold().await?;
            let shared = held.stream.shared.clone();
            let mut copy = Copy {
                memory,
                offset,
                bytes: match &mut bytes {
                    Bytes::Out(from) => Bytes::Out(from),
                    Bytes::In(into) => Bytes::In(into),
                },
                shared: shared.as_deref(),
            };
            let copied = copy.run(&mut held.stream, progress).await;
            match held.done(copied).await {
                Err(error) if may_repeat && error.may_have_happened() => may_repeat = false,
                outcome => return outcome,
            }
        }
    }

    /// Copies bytes that are in the [shared memory](GpuSession::shared_memory) to the device, blocking.
    ///
    /// # Errors
    /// See [`GpuSession::mem_write`].
    pub fn mem_write_shared(
        &self,
        memory: &GpuMemory,
        offset: u64,
        shared_offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let copy = self.shared_copy(memory, offset, shared_offset, length)?;
        done(&wait(self.queue.ask(&GpuRequest::MemWriteShared(copy)))?)
    }

    /// Copies bytes from the device to the [shared memory](GpuSession::shared_memory), blocking.
    ///
    /// # Errors
    /// See [`GpuSession::mem_read`].
    pub fn mem_read_shared(
        &self,
        memory: &GpuMemory,
        offset: u64,
        shared_offset: u64,
        length: u64,
    ) -> Result<(), Error> {
        let copy = self.shared_copy(memory, offset, shared_offset, length)?;
        done(&wait(self.queue.ask(&GpuRequest::MemReadShared(copy)))?)
    }

    fn shared_copy(
        &self,
        memory: &GpuMemory,
        offset: u64,
        shared_offset: u64,
        length: u64,
    ) -> Result<GpuSharedCopy, Error> {
        let shared = self.shared_memory().map_or(0, |it| it.bytes() as u64);
        let end = shared_offset.checked_add(length);
        if length == 0 || end.is_none_or(|end| end > shared) {
            return Err(Error::Usage(format!(
                "{length} bytes at {shared_offset} are not within the {shared} bytes of shared memory"
            )));
        }
        Ok(GpuSharedCopy {
            memory: memory.range(&self.queue, offset, length)?,
            offset,
            shared_offset,
            length,
        })
    }
}
