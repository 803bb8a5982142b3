//! The lines about a client on standard output.

use fabricbios_client::Granted;
use fabricbios_wire::Size;

use super::{Client, Line, Over};
use crate::{
    commands::alloc,
    json::{Field, Object, field},
    time_text,
};

impl Client<'_> {
    pub(super) fn print_leased(&self, line: &Line, lease: &Granted) {
        let (info, asked) = (&lease.info, &self.server.node);
        let [address, id] = alloc::node_json(&lease.node);
        let (lease_id, expires_at) = (info.lease_id, info.expires_at_unix_ms);
        let fields = [
            field("lease_id", lease_id.to_string()),
            field("qp_num", line.qpn),
            field("expires_at_unix_ms", expires_at),
            address,
            id,
        ];
        self.print("leased", fields, || {
            let (qpn, size) = (line.qpn, Size(info.capacity));
            let until = time_text::utc(expires_at);
            let node = alloc::other(&lease.node, asked);
            let node = node.map_or_else(String::new, |node| format!(", node {node}"));
            format!("queue pair {qpn} has lease {lease_id} of {size} until {until}{node}")
        });
    }

    pub(super) fn print_over(&self, (lease_id, how): &Over) {
        let fields = [
            field("lease_id", lease_id.to_string()),
            field("message", &**how),
        ];
        self.print("over", fields, || {
            format!("lease {lease_id} is over, and the client's access with it: {how}")
        });
    }

    pub(super) fn print_closed(&self) {
        if self.pairs.is_empty() {
            return;
        }
        let (event, what) = match self.handshake.is_complete() {
            true => ("done", "its run is over".to_owned()),
            false if self.stops() => ("left", "it is served no more".to_owned()),
            false => {
                let size = Size(self.server.bytes);
                let what = format!(
                    "it left before the end of its run; messages of more than {size} (--bytes) fail"
                );
                ("left", what)
            }
        };
        self.print(event, [], || format!("{what}; its leases are given back"));
    }

    /// Prints a line about the client. The names are a contract.
    fn print<const N: usize>(
        &self,
        event: &'static str,
        fields: [Field<'_>; N],
        text: impl FnOnce() -> String,
    ) {
        let peer = self.peer.to_string();
        let json = Object::from([field("event", event), field("client", &*peer)]).with(fields);
        // Standard output may be closed.
        let printed = self
            .server
            .output
            .print(&json, || format!("client {peer}: {}", text()));
        printed.ok();
    }
}
