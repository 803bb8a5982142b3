//! Memory.

use clap::Args;
use fabricbios_client::{Node, code_text};
use fabricbios_wire::{
    KvCacheIntent, LeaseAllocRequest, LeaseInfo, LeaseIntent, MemTerms, RdmaBinding, RdmaPeer,
    Transport,
};

use super::Face;
use crate::{
    args::{Grace, PEER, Term},
    commands::request_of,
    failure::Failure,
    gid,
    lease_text::row,
    time_text, values,
};

/// Memory
#[derive(Args, Debug)]
pub(crate) struct Alloc {
    /// The size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB: 1024 each) or KB, MB, GB, TB (1000
    /// each)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    bytes: u64,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    grace: Grace,
    /// The transport: auto, rdma, udp, both
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Auto)]
    transport: Transport,
    /// The client's queue pair; repeat the flag for each of several; numbers decimal or 0x, gid as eight
    /// groups, IPv6, IPv4 or raw bytes
    #[arg(long, value_parser = values::rdma_peer, value_name = PEER)]
    rdma_peer: Vec<RdmaPeer>,
    /// The intent of a KV cache: hot, warm or cold, and the block size
    #[arg(long, value_parser = values::kv_cache, value_name = "TIER[,block=SIZE]")]
    intent_kv_cache: Option<KvCacheIntent>,
    /// Renewal changes the key; for clients that follow key changes
    #[arg(long)]
    rotate_on_renew: bool,
}

impl Alloc {
    pub(super) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
        let terms = MemTerms {
            rdma_peers: self.rdma_peer,
        };
        let request = request_of(node, terms, self.bytes, self.term)?;
        Ok(LeaseAllocRequest {
            transport: self.transport,
            rotate_on_renew: self.rotate_on_renew,
            grace_secs: self.grace.grace_secs,
            intent: LeaseIntent {
                kv_cache: self.intent_kv_cache,
                ..request.intent
            },
            ..request
        })
    }
}

pub(super) struct Mem;

impl Face for Mem {
    fn rows(&self, info: &LeaseInfo) -> Vec<Vec<String>> {
        info.binding.rdma().map_or_else(Vec::new, rows)
    }

    fn instead_of_run(&self) -> Option<&'static str> {
        Some("`fabricctl mem` reads and writes the lease")
    }

    fn is_in_stretches(&self) -> bool {
        true
    }
}

fn rows(rdma: &RdmaBinding) -> Vec<Vec<String>> {
    let key = match (rdma.rkey, rdma.prepared_rkey) {
        (Some(rkey), _) => format!("rkey {rkey:#010x} at {:#x}", rdma.remote_addr),
        (None, Some(rkey)) => {
            format!(
                "rkey {rkey:#010x} after `fabricctl lease bind --beside` with the client's queue pair"
            )
        }
        (None, None) if rdma.attach.is_some() => {
            "no key yet: it comes with the connection through rdma_cm".to_owned()
        }
        (None, None) => {
            "no key yet: give the client's queue pair with `fabricctl lease bind`".to_owned()
        }
    };
    let peer = format!(
        "qp {} psn {} gid {} port {}",
        rdma.qp_num,
        rdma.psn,
        gid::text(rdma.gid),
        rdma.port
    );
    let mut rows = vec![row("rdma", key), row("", peer)];
    for pair in &rdma.further {
        let further = format!(
            "qp {} psn {} rkey {:#010x}",
            pair.qp_num, pair.psn, pair.rkey
        );
        rows.push(row("", further));
    }
    let atomics = if rdma.atomics {
        "atomics"
    } else {
        "no atomics"
    };
    let manner = format!(
        "path mtu {}, {} reads at once, {atomics}, {}",
        rdma.path_mtu, rdma.max_rd_atomic, rdma.strategy
    );
    rows.push(row("", manner));
    if let Some(attach) = &rdma.attach {
        let how = format!(
            "{}: one program that connects to {} with rdma_cm and sends these 16 bytes as its private data joins the lease",
            code_text(attach).as_str(),
            attach.endpoint
        );
        rows.push(row("attach code", how));
    }
    if let Some(old) = rdma.previous {
        let left = time_text::span(old.remaining_ms.into());
        rows.push(row(
            "",
            format!("old rkey {:#010x} works for {left}", old.rkey),
        ));
    }
    rows
}
