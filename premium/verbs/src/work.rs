//! The work requests that this crate posts: bind, invalidate, and a client's read and write.

use std::{mem::MaybeUninit, ptr::null_mut};

use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{MemoryRegion, QueuePair, Rights, Window, check};

impl QueuePair {
    /// Posts BIND_MW: gives `window` the key `rkey` to `bytes` bytes of `region` at `address`. The window holds the queue
    /// pair until LOCAL_INV has completed or the window is deallocated.
    ///
    /// # Errors
    /// The window is of another queue pair (`EINVAL`), or the request cannot be posted.
    pub fn post_bind(
        &self,
        id: u64,
        window: &mut Window,
        rkey: u32,
        region: &MemoryRegion,
        (address, bytes): (u64, u64),
        rights: Rights,
    ) -> Result<(), Errno> {
        if !window.is_of(&self.mark) {
            return Err(Errno::EINVAL);
        }
        let mut work = blank_work(id, ffi::ibv_wr_opcode::IBV_WR_BIND_MW);
        work.bind_mw_tso_union.bind_mw = ffi::bind_mw_t {
            mw: window.as_ptr(),
            rkey,
            bind_info: ffi::ibv_mw_bind_info {
                mr: region.as_ptr(),
                addr: address,
                length: bytes,
                mw_access_flags: rights.flags(),
            },
        };
        self.post(&mut work)?;
        window.hold(&self.mark);
        Ok(())
    }

    /// Posts LOCAL_INV, which ends the key.
    ///
    /// # Errors
    /// The request cannot be posted.
    pub fn post_invalidate(&self, id: u64, rkey: u32) -> Result<(), Errno> {
        let mut work = blank_work(id, ffi::ibv_wr_opcode::IBV_WR_LOCAL_INV);
        work.imm_data_invalidated_rkey_union.invalidated_rkey = rkey;
        self.post(&mut work)
    }

    /// Posts an RDMA WRITE from `offset` of the local buffer.
    ///
    /// # Errors
    /// The range is not in the buffer (`EINVAL`), or the request cannot be posted.
    pub fn post_write(
        &self,
        id: u64,
        from: (&MemoryRegion, u64, u32),
        to: (u32, u64),
    ) -> Result<(), Errno> {
        self.post_rdma(id, ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, from, to)
    }

    /// Posts an RDMA READ to `offset` of the local buffer.
    ///
    /// # Errors
    /// The range is not in the buffer (`EINVAL`), or the request cannot be posted.
    pub fn post_read(
        &self,
        id: u64,
        to: (&MemoryRegion, u64, u32),
        from: (u32, u64),
    ) -> Result<(), Errno> {
        self.post_rdma(id, ffi::ibv_wr_opcode::IBV_WR_RDMA_READ, to, from)
    }

    fn post_rdma(
        &self,
        id: u64,
        opcode: ffi::ibv_wr_opcode::Type,
        (region, offset, bytes): (&MemoryRegion, u64, u32),
        (rkey, remote_addr): (u32, u64),
    ) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.into()).ok_or(Errno::EINVAL)?;
        if end > region.arena().bytes() {
            return Err(Errno::EINVAL);
        }
        let addr = region.arena().mapping().address() + offset;
        let mut piece = ffi::ibv_sge {
            addr,
            length: bytes,
            lkey: region.lkey(),
        };
        let mut work = blank_work(id, opcode);
        work.sg_list = &raw mut piece;
        work.num_sge = 1;
        work.wr.rdma = ffi::rdma_t { remote_addr, rkey };
        self.post(&mut work)
    }

    fn post(&self, work: &mut ffi::ibv_send_wr) -> Result<(), Errno> {
        let mut bad = null_mut();
        // SAFETY: the queue pair exists; the library copies `work` and everything it points to before it returns.
        check(unsafe { ffi::ibv_post_send(self.as_ptr(), work, &raw mut bad) })
    }
}

fn blank_work(id: u64, opcode: ffi::ibv_wr_opcode::Type) -> ffi::ibv_send_wr {
    // SAFETY: plain integers and pointers, for which zero is a value.
    let mut work: ffi::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    work.wr_id = id;
    work.opcode = opcode;
    work.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    work
}
