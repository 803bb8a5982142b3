//! One connection to etcd: reads what is there, watches what changes, writes what is due, and keeps this scheduler present.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabricbios_wire::NodeId;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tonic::{Streaming, transport::Endpoint};

use super::{
    Forget, Task,
    client::{Client, Failure, LEASE_SECS, watch_failure},
    jittered,
    record::Key,
    rpc::{Event, KeyValue, WatchResponse},
};

/// How often the presence of this scheduler is renewed: three times within its lease.
const KEEP_ALIVE: Duration = Duration::from_secs(LEASE_SECS.cast_unsigned() / 3);
/// How often everything is read anew: released versions of etcd have lost delete events of a watch (etcd #18089, #19179).
const READ_ANEW: Duration = Duration::from_secs(300);
/// How long nothing is written after etcd has refused it.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// What a session waits for.
enum Next {
    Changes,
    KeepAlive,
    ReadAnew,
    Write,
    Settled,
    Forget(Forget),
    Watch(Result<Option<WatchResponse>, Failure>),
}

impl Task {
    /// Works with this etcd until a call fails.
    pub(super) async fn session(&mut self, endpoint: &Endpoint) -> Failure {
        match self.converse(endpoint).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    async fn converse(&mut self, endpoint: &Endpoint) -> Result<std::convert::Infallible, Failure> {
        let client = Client::connect(endpoint, &self.calls).await?;
        let mut watch = self.read_all(&client).await?;
        self.answers(endpoint);
        self.be_present(&client).await?;
        let mut keep_alive = every(KEEP_ALIVE);
        let mut read_anew = every(jittered(READ_ANEW));
        loop {
            let can_write = self.members.has_due();
            let refused_until = self.refused_until.unwrap_or_else(Instant::now);
            let settles_at = self.settling.unwrap_or_else(Instant::now);
            let next = tokio::select! {
                biased;
                _ = keep_alive.tick() => Next::KeepAlive,
                _ = read_anew.tick() => Next::ReadAnew,
                told = watch.message() => Next::Watch(told.map_err(|it| watch_failure(&it))),
                () = self.mailbox.changed.notified() => Next::Changes,
                Some(forget) = self.forgets.recv() => Next::Forget(forget),
                () = sleep_until(refused_until), if can_write => Next::Write,
                () = sleep_until(settles_at), if self.settling.is_some() => Next::Settled,
            };
            match next {
                Next::Changes => self.take_changes(),
                Next::KeepAlive => self.be_present(&client).await?,
                Next::ReadAnew => watch = self.read_anew(&client).await?,
                Next::Forget(forget) => self.forget(&client, forget).await?,
                Next::Write => self.write_next(&client).await?,
                Next::Settled => {
                    self.settling = None;
                    self.tell_read().await;
                }
                Next::Watch(Ok(Some(told))) => {
                    if !self.hear(told).await? {
                        watch = self.read_anew(&client).await?;
                    }
                }
                Next::Watch(Ok(None)) => return Err(ended("etcd has ended it".into())),
                Next::Watch(Err(failure)) => return Err(failure),
            }
        }
    }

    /// Reads everything again. Meanwhile nobody hears of new members, so nothing is refused for good.
    async fn read_anew(&mut self, client: &Client) -> Result<Streaming<WatchResponse>, Failure> {
        self.settling.get_or_insert_with(Instant::now);
        self.tell_read().await;
        self.read_all(client).await
    }

    /// Reads everything and watches from there.
    async fn read_all(&mut self, client: &Client) -> Result<Streaming<WatchResponse>, Failure> {
        let all = client.all(&self.keys).await?;
        let mut nodes = Vec::new();
        let mut schedulers = BTreeSet::new();
        let mut policy = None;
        for KeyValue {
            key,
            mod_revision,
            value,
        } in all.records
        {
            match self.keys.read(&key) {
                Some(Key::Node(id)) => nodes.push((id, mod_revision, value)),
                Some(Key::Scheduler(id)) => drop(schedulers.insert(id)),
                Some(Key::Policy) => policy = Some((mod_revision, value)),
                None => {}
            }
        }
        let policy = { policy.as_ref() }.map(|(at, value)| (*at, &value[..]));
        self.take_policy(policy).await;
        // Who has left meanwhile must not look as if it reported.
        self.take_changes();
        let (goes_on, news) = self.members.take_all(all.revision, nodes);
        if !goes_on || !mem::replace(&mut self.has_read, true) {
            self.settling = Some(Instant::now() + self.settles_after);
        }
        for news in news {
            self.tell_of(Some(news)).await;
        }
        for id in self.schedulers.difference(&schedulers) {
            self.other_gone(*id);
        }
        for id in schedulers.difference(&self.schedulers) {
            self.other_present(*id);
        }
        self.schedulers = schedulers;
        tracing::debug!(
            revision = all.revision,
            members = self.members.len(),
            "everything was read from etcd"
        );
        let watch = client.watch(&self.keys, all.revision + 1).await?;
        self.tell_read().await;
        Ok(watch)
    }

    /// Takes what the watch has told. `false`: etcd has compacted what the watch asks for, so everything must be read anew.
    async fn hear(&mut self, told: WatchResponse) -> Result<bool, Failure> {
        if told.canceled && told.compact_revision == 0 {
            return Err(ended(told.cancel_reason));
        }
        self.take_changes();
        for event in told.events {
            self.hear_event(event).await;
        }
        self.tell_read().await;
        Ok(!told.canceled)
    }

    async fn hear_event(&mut self, event: Event) {
        let Some(kv) = event.kv else { return };
        let is_deleted = event.kind == Event::DELETE;
        match self.keys.read(&kv.key) {
            Some(Key::Node(id)) => {
                let news = match is_deleted {
                    true => self.members.deleted(id, kv.mod_revision),
                    false => self.members.put(id, kv.mod_revision, &kv.value),
                };
                self.tell_of(news).await;
            }
            Some(Key::Scheduler(id)) => match is_deleted {
                true if self.schedulers.remove(&id) => self.other_gone(id),
                false if self.schedulers.insert(id) => self.other_present(id),
                _ => {}
            },
            Some(Key::Policy) => {
                let record = (!is_deleted).then_some((kv.mod_revision, &kv.value[..]));
                self.take_policy(record).await;
            }
            None => {}
        }
    }

    fn other_present(&self, id: NodeId) {
        if id != self.scheduler_id {
            tracing::info!(scheduler_id = %id, "another scheduler is present in etcd");
        }
    }

    fn other_gone(&self, id: NodeId) {
        if id != self.scheduler_id {
            tracing::info!(scheduler_id = %id, "another scheduler is not present in etcd any more; its nodes go on");
        }
    }

    /// Writes the next record that is due.
    async fn write_next(&mut self, client: &Client) -> Result<(), Failure> {
        let now = since_unix_epoch().as_millis();
        let now_unix_ms = u64::try_from(now).unwrap_or(u64::MAX);
        let Some(write) = self.members.next_write(now_unix_ms) else {
            return Ok(());
        };
        let key = self.keys.node(write.id);
        let (id, mod_revision) = (write.id, write.mod_revision);
        let wrote = client
            .put_if(key, mod_revision, write.record.to_bytes())
            .await;
        let news = match self.unless_refused(wrote)? {
            None => return Ok(()),
            Some(Ok(revision)) => self.members.written(write, revision),
            Some(Err(found)) => {
                let found = found.as_ref().map(|it| (it.mod_revision, &it.value[..]));
                self.members.overtaken(id, found)
            }
        };
        self.tell_of(news).await;
        Ok(())
    }

    /// Removes a member, as an operator wants, unless it has come back or its record has changed.
    async fn forget(&mut self, client: &Client, forget: Forget) -> Result<(), Failure> {
        self.take_changes();
        let id = forget.id;
        let Some(mod_revision) = self.members.removable(id) else {
            forget.refuse("it reports again, or etcd has no record of it that can be read");
            return Ok(());
        };
        let removed = client.delete_if(self.keys.node(id), mod_revision).await;
        let became = match removed {
            Ok(Ok(revision)) => {
                tracing::info!(node_id = %id, "an operator has it forgotten: it belongs to the fabric no more");
                let became = self.members.deleted(id, revision);
                self.tell_of(became).await;
                forget.done();
                return Ok(());
            }
            Ok(Err(found)) => {
                forget.refuse("its record has changed a moment ago");
                let found = found.as_ref().map(|it| (it.mod_revision, &it.value[..]));
                self.members.overtaken(id, found)
            }
            Err(failure) => {
                forget.refuse(&format!(
                    "etcd has not said that it is forgotten: {failure}"
                ));
                self.unless_refused::<()>(Err(failure))?;
                None
            }
        };
        self.tell_of(became).await;
        Ok(())
    }

    /// Renews the lease of this scheduler's presence, or gets one. Presence says who is there, and decides nothing.
    async fn be_present(&mut self, client: &Client) -> Result<(), Failure> {
        if let Some((_, lease)) = self.presence.take() {
            let is_listed = self.schedulers.contains(&self.scheduler_id);
            // Also for the stop, if this call fails.
            self.presence = Some((client.clone(), lease));
            if client.keep_alive(lease).await? && is_listed {
                return Ok(());
            }
            self.presence = None;
        }
        if self
            .refused_until
            .is_some_and(|until| until > Instant::now())
        {
            return Ok(());
        }
        let key = self.keys.scheduler(self.scheduler_id);
        let value = serde_json::json!({
            "version": 1,
            "since_unix_secs": since_unix_epoch().as_secs(),
        });
        let leased = client.put_leased(key, value.to_string().into_bytes()).await;
        if let Some(lease) = self.unless_refused(leased)? {
            self.presence = Some((client.clone(), lease));
            self.schedulers.insert(self.scheduler_id);
        }
        Ok(())
    }

    /// `None`: etcd answers, and refuses to write.
    fn unless_refused<T>(&mut self, done: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match done {
            Ok(done) => {
                if self.refused_until.take().is_some() {
                    tracing::info!("etcd takes what this scheduler writes again");
                }
                Ok(Some(done))
            }
            Err(Failure::Refused { what, code, why }) => {
                if self.refused_until.is_none() {
                    tracing::warn!(
                        what,
                        ?code,
                        why,
                        "etcd refuses to write: members that are new are kept in memory until it does"
                    );
                }
                self.refused_until = Some(Instant::now() + jittered(REFUSED_PAUSE));
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// By the wall clock; zero if that is before 1970.
fn since_unix_epoch() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

fn ended(why: String) -> Failure {
    Failure::Lost { what: "watch", why }
}

fn every(period: Duration) -> Interval {
    let mut every = interval_at(Instant::now() + period, period);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every
}
