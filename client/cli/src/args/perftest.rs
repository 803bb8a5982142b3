//! `perftest`: leases for perftest's clients.

use std::net::SocketAddr;

use clap::Args;

use crate::values;

/// Serve perftest's clients in place of their own server, until SIGINT or SIGTERM: unmodified ib_write_bw, ib_read_bw,
/// ib_read_lat, ib_atomic_bw and ib_atomic_lat. Each queue pair of a client, 8 at most, gets a lease of its own, which
/// is given back when the client goes
///
/// Run the client as `ib_write_bw -d DEVICE -x GID_INDEX ADDR -p PORT`, with the address and the port of --listen. When
/// a lease ends first, its client fails, and a line here says how the lease ended.
///
/// A lease only answers: it never writes or receives. So ib_send_bw, ib_send_lat, ib_write_lat, -b (both directions)
/// and --write_with_imm cannot work, nor can other connections than RC (-c). A client with -R or -z (rdma_cm) does not
/// come to this port at all.
#[derive(Args, Debug)]
pub(crate) struct Perftest {
    /// The address to listen on. The clients are not authenticated: whoever reaches this address uses leases of yours
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:18515", value_parser = values::listen)]
    pub(crate) listen: SocketAddr,
    /// The size of each lease, which is the longest message of a client (-s): bytes, or with K, M, G (1024 each).
    /// 8 MiB is enough for -a
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = values::size)]
    pub(crate) bytes: u64,
    /// The term of each lease, in seconds; it is not renewed
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = values::secs)]
    pub(crate) secs: u32,
}
