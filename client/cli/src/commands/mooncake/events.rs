//! The lines of the command.

use std::io::{self, Write};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, RdmaStrategy, Size};

use crate::{
    commands::{alloc, serve::how_it_ended},
    failure::Failure,
    json::{Field, Object, field},
    output::{Output, one_line},
    time_text,
};

/// Prints a line for each event. What goes wrong is on standard error, without `--json`.
#[derive(Clone, Copy)]
pub(super) struct Events(pub(super) Output);

impl Events {
    /// The segment is there: a lease of the first node, which the second one has granted or named. The names are a
    /// contract, here and below.
    pub(super) fn segment(
        self,
        name: &str,
        info: &LeaseInfo,
        mtu: u16,
        (node, asked): (&Node, &Node),
    ) -> Result<(), Failure> {
        let rdma = info.binding.rdma();
        let least = |its: u16| if mtu == 0 { its } else { its.min(mtu) };
        let path_mtu = rdma.map(|rdma| least(rdma.path_mtu));
        let is_window = rdma.is_some_and(|rdma| rdma.strategy == RdmaStrategy::Window);
        let json = Object::from([
            field("segment", name),
            field("lease_id", info.lease_id.to_string()),
            field("bytes", info.capacity),
            field("expires_at_unix_ms", info.expires_at_unix_ms),
            field("path_mtu", path_mtu),
            field("strategy", rdma.map(|rdma| rdma.strategy.name())),
        ]);
        let json = json.with(alloc::node_json(node));
        self.0.print(&json, || {
            let (lease, size) = (info.lease_id, Size(info.capacity));
            let until = time_text::utc(info.expires_at_unix_ms);
            let mtu = path_mtu.map_or_else(String::new, |mtu| format!(", path MTU {mtu}"));
            let one = match is_window {
                true => "; a window: one client, with MC_NUM_QP_PER_EP=1",
                false => "",
            };
            let node = alloc::other(node, asked);
            let node = node.map_or_else(String::new, |node| format!(", node {node}"));
            format!("segment {name}: lease {lease}, {size} until {until}{mtu}{node}{one}")
        })
    }

    pub(super) fn connected(self, client: &str, queue_pairs: usize) {
        let count = field("queue_pairs", queue_pairs as u64);
        self.good("connected", client, [count], || {
            format!("client {client} is connected, queue pairs: {queue_pairs}")
        });
    }

    /// A client has ended, and its queue pairs were cut.
    pub(super) fn left(self, client: &str, queue_pairs: usize) {
        let count = field("queue_pairs", queue_pairs as u64);
        self.good("left", client, [count], || {
            format!("client {client} has ended, queue pairs that were cut: {queue_pairs}")
        });
    }

    /// A client was told that the lease is over.
    pub(super) fn kicked(self, client: &str) {
        self.good("kicked", client, [], || {
            format!("client {client} knows that the lease is over")
        });
    }

    /// A client or its message was refused.
    pub(super) fn refused(self, client: &str, why: &str) {
        self.bad("refused", client, why, "is refused");
    }

    /// A client was not told that the lease is over.
    pub(super) fn not_kicked(self, client: &str, why: &str) {
        let text = "was not told that the lease is over, and its transfers end with an error";
        self.bad("not_kicked", client, why, text);
    }

    pub(super) fn renewed(self, info: &LeaseInfo) {
        let json = Object::from([
            field("event", "renewed"),
            field("expires_at_unix_ms", info.expires_at_unix_ms),
        ]);
        self.print(&json, || {
            let until = time_text::utc(info.expires_at_unix_ms);
            format!("lease {} is renewed until {until}", info.lease_id)
        });
    }

    /// The lease goes on to the end of its term.
    pub(super) fn not_renewed(self, why: &str) {
        let json = Object::from([field("event", "not_renewed"), field("message", why)]);
        self.trouble(&json, || {
            format!("the lease is not renewed any more: {why}")
        });
    }

    /// Clients are not told: their transfers may go on while only this command does not reach the node.
    pub(super) fn node_lost(self, info: &LeaseInfo, why: &str) {
        let json = Object::from([field("event", "node_lost"), field("message", why)]);
        self.trouble(&json, || {
            let until = time_text::utc(info.expires_at_unix_ms);
            format!(
                "the node does not answer: transfers go on if its daemon lives, until {until} at the latest: {why}"
            )
        });
    }

    pub(super) fn node_back(self) {
        let json = Object::from([field("event", "node_back")]);
        self.print(&json, || "the node answers again".to_owned());
    }

    /// Queue pairs of a client that has others now, or has ended, could not be cut.
    pub(super) fn not_cut(self, client: &str, why: &str) {
        self.bad(
            "not_cut",
            client,
            why,
            "has old queue pairs, which last as long as the lease",
        );
    }

    pub(super) fn ended(self, info: &LeaseInfo, how: &str) {
        let cause = info.end.as_ref().map(|end| end.cause.name());
        // A node that cannot be reached has not told an end.
        let state = how_it_ended(info).map(|_| info.phase.name());
        let json = Object::from([
            field("event", "ended"),
            field("state", state),
            field("end_cause", cause),
        ]);
        self.print(&json, || format!("lease {} is over: {how}", info.lease_id));
    }

    fn good<const N: usize>(
        self,
        event: &'static str,
        client: &str,
        more: [Field<'_>; N],
        text: impl FnOnce() -> String,
    ) {
        let json = Object::from([field("event", event), field("client", client)]).with(more);
        self.print(&json, text);
    }

    fn bad(self, event: &'static str, client: &str, why: &str, text: &str) {
        let json = Object::from([
            field("event", event),
            field("client", client),
            field("message", why),
        ]);
        self.trouble(&json, || format!("client {client} {text}: {why}"));
    }

    /// Clients are served also when nobody reads the lines any more.
    fn print(self, json: &Object<'_>, text: impl FnOnce() -> String) {
        self.0.print(json, text).ok();
    }

    fn trouble(self, json: &Object<'_>, text: impl FnOnce() -> String) {
        if self.0.json {
            return self.print(json, String::new);
        }
        writeln!(io::stderr(), "fabricctl: {}", one_line(&text())).ok();
    }
}
