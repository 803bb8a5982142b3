//! Queue pairs that leave a lease: those of clients that have others now or have ended, and at the end of the lease all.

use std::thread;

use fabricbios_wire::{PeerChange, Request};

use super::{
    bridge::{Bridge, State, locked},
    calls,
    frames::Kind,
    handshake::Client,
    messages::QueuePairs,
};

impl Bridge {
    /// Queue pairs of clients that have ended are cut: a lease has a limited number of them.
    pub(super) fn forget_the_ended(&self, but: &str) {
        let others = self.state().segment.clients().to_vec();
        let others = others.into_iter().filter(|it| it.path != but);
        for client in calls::ended(others.collect()) {
            let ours = self.state().segment.left(&client.path);
            let count = ours.len();
            if self.cut(&client.path, ours) {
                self.events.left(&client.path, count);
            }
        }
    }

    /// Cuts queue pairs of the node; returns whether there were any and they are gone.
    pub(super) fn cut(&self, client: &str, ours: Vec<u32>) -> bool {
        if ours.is_empty() {
            return false;
        }
        let _turn = locked(&self.turn);
        let lease_id = self.lease_id;
        let change = PeerChange::Remove(ours);
        match self.ask(Request::LeasePeers { lease_id, change }) {
            Ok(_) => true,
            Err(why) => {
                self.events.not_cut(client, &why);
                false
            }
        }
    }

    /// Refuses clients from now on, and tells the connected ones that the lease is over: a handshake without queue pairs
    /// makes a client end those that it has.
    pub(super) fn end(&self, how: &str) {
        let calls: Vec<(Client, QueuePairs)> = {
            let mut state = self.state();
            state.ended = Some(how.to_owned());
            let State { segment, rdma, .. } = &*state;
            let call =
                |client: &Client| (client.clone(), segment.message(rdma, &client.path, &[], ""));
            segment.clients().iter().map(call).collect()
        };
        let events = self.events;
        thread::scope(|scope| {
            for (client, message) in calls {
                scope.spawn(move || {
                    let called = client.listener.clone().and_then(|address| {
                        calls::call::<QueuePairs>(address, Kind::Connection, &message)
                    });
                    match called {
                        Ok(_) => events.kicked(&client.path),
                        Err(why) => match &*calls::ended(vec![client.clone()]) {
                            [] => events.not_kicked(&client.path, &why),
                            _ => events.left(&client.path, client.ours.len()),
                        },
                    }
                });
            }
        });
    }
}
