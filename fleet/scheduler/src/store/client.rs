//! The calls of etcd that a scheduler makes, each with a deadline. gRPC is tonic's; the messages are in `rpc.rs`.

use std::{error::Error, future::Future, time::Duration};

use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tokio_stream::{StreamExt, once, pending};
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    calls::Calls,
    identity::chain,
    members::RECORDS_MAX,
    record::Keys,
    rpc::{
        Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseRequest, LeaseResponse,
        LeaseRevokeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
        TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    },
};

/// The longest time for the connection, and for each answer: an etcd that is slow by 5 s is used, only late.
pub(super) const DEADLINE: Duration = Duration::from_secs(8);
/// Seconds that etcd keeps the presence of a scheduler without a word of it.
pub(super) const LEASE_SECS: i64 = 30;
/// Records of a page. Halved where a page is larger than a message may be.
const PAGE_RECORDS_MAX: i64 = 512;
/// Most bytes below the fabric's prefix: a hundred times those of all records that a scheduler can have written.
const BYTES_MAX: usize = 64 << 20;

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No answer in time.
    #[error("{what}: no answer within {DEADLINE:?}")]
    Silent { what: &'static str },
    /// No connection, or it has ended, or etcd has no leader.
    #[error("{what}: {why}")]
    Lost { what: &'static str, why: String },
    /// etcd answers, and refuses: it is full, or does not let this certificate write.
    #[error("{what}: {why} ({code:?})")]
    Refused {
        what: &'static str,
        code: Code,
        why: String,
    },
}

impl Failure {
    fn of(what: &'static str, status: &Status) -> Self {
        let code = status.code();
        let why = chain(status.message(), status.source());
        match code {
            Code::ResourceExhausted
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::NotFound
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused { what, code, why },
            _ => Self::Lost { what, why },
        }
    }
}

/// A connection to one etcd server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    grpc: Grpc<Channel>,
    calls: Calls,
}

/// All records of the fabric.
pub(crate) struct All {
    pub(crate) records: Vec<KeyValue>,
    /// The revision at which they were read.
    pub(crate) revision: i64,
}

impl Client {
    pub(crate) async fn connect(endpoint: &Endpoint, calls: &Calls) -> Result<Self, Failure> {
        let what = "connect";
        let connected = calls.count(what, async {
            let connected = timeout(DEADLINE, endpoint.connect()).await;
            let channel = connected.map_err(|_late| Failure::Silent { what })?;
            channel.map_err(|error| {
                let why = chain(&error.to_string(), error.source());
                Failure::Lost { what, why }
            })
        });
        Ok(Self {
            grpc: Grpc::new(connected.await?),
            calls: calls.clone(),
        })
    }

    /// All records below the fabric's prefix, as they were at one revision.
    pub(crate) async fn all(&self, keys: &Keys) -> Result<All, Failure> {
        let mut limit = PAGE_RECORDS_MAX;
        loop {
            match self.pages(keys, limit).await {
                // Too large for a message, or the revision was compacted between two pages.
                Err(Failure::Refused {
                    code: Code::OutOfRange,
                    ..
                }) if limit > 1 => limit /= 2,
                other => return other,
            }
        }
    }

    async fn pages(&self, keys: &Keys, limit: i64) -> Result<All, Failure> {
        let (mut key, range_end) = keys.range();
        let mut bytes = 0;
        let mut all = All {
            records: Vec::new(),
            revision: 0,
        };
        loop {
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit,
                revision: all.revision,
            };
            let page: RangeResponse = self.call("read", "/etcdserverpb.KV/Range", request).await?;
            if all.revision == 0 {
                all.revision = page.header.map_or(0, |it| it.revision);
            }
            bytes += page.kvs.iter().map(KeyValue::encoded_len).sum::<usize>();
            let Some(last) = page.kvs.last().filter(|_| page.more) else {
                all.records.extend(page.kvs);
                return Ok(all);
            };
            key = [&last.key[..], &[0]].concat();
            all.records.extend(page.kvs);
            if bytes > BYTES_MAX || all.records.len() > RECORDS_MAX {
                let why = format!(
                    "more than {BYTES_MAX} bytes or {RECORDS_MAX} records are below the fabric's prefix"
                );
                return Err(Failure::Lost { what: "read", why });
            }
        }
    }

    /// Puts `value` if the key has this revision. Otherwise returns what the key has.
    pub(crate) async fn put_if(
        &self,
        key: Vec<u8>,
        mod_revision: i64,
        value: Vec<u8>,
    ) -> Result<Result<i64, Option<KeyValue>>, Failure> {
        let put = PutRequest {
            key: key.clone(),
            value,
            lease: 0,
        };
        let operation = RequestOp {
            put: Some(put),
            ..RequestOp::default()
        };
        self.change_if(key, mod_revision, operation).await
    }

    /// Deletes the key if it has this revision. Otherwise returns what it has.
    pub(crate) async fn delete_if(
        &self,
        key: Vec<u8>,
        mod_revision: i64,
    ) -> Result<Result<i64, Option<KeyValue>>, Failure> {
        let delete = DeleteRangeRequest { key: key.clone() };
        let operation = RequestOp {
            delete: Some(delete),
            ..RequestOp::default()
        };
        self.change_if(key, mod_revision, operation).await
    }

    async fn change_if(
        &self,
        key: Vec<u8>,
        mod_revision: i64,
        operation: RequestOp,
    ) -> Result<Result<i64, Option<KeyValue>>, Failure> {
        let get = RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        };
        let request = TxnRequest {
            compare: vec![Compare {
                target: Compare::MOD,
                key,
                mod_revision: Some(mod_revision),
            }],
            success: vec![operation],
            failure: vec![RequestOp {
                range: Some(get),
                ..RequestOp::default()
            }],
        };
        let answer: TxnResponse = self.call("write", "/etcdserverpb.KV/Txn", request).await?;
        if answer.succeeded {
            return Ok(Ok(answer.header.map_or(0, |it| it.revision)));
        }
        let found = answer.responses.into_iter().find_map(|it| it.range);
        Ok(Err(found.and_then(|it| it.kvs.into_iter().next())))
    }

    /// Puts the key under a new lease. Returns the lease.
    pub(crate) async fn put_leased(&self, key: Vec<u8>, value: Vec<u8>) -> Result<i64, Failure> {
        let grant = LeaseGrantRequest { ttl: LEASE_SECS };
        let path = "/etcdserverpb.Lease/LeaseGrant";
        let granted: LeaseResponse = self.call("get a lease", path, grant).await?;
        let put = PutRequest {
            key,
            value,
            lease: granted.id,
        };
        let path = "/etcdserverpb.KV/Put";
        let _: PutResponse = self.call("write under a lease", path, put).await?;
        Ok(granted.id)
    }

    /// Renews a lease. `false`: etcd has none.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<bool, Failure> {
        let what = "renew the lease";
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let answer = async {
            let requests = once(LeaseRequest { id });
            let mut answers: Streaming<LeaseResponse> = self.stream(path, requests).await?;
            answers.message().await
        };
        let answer = self.calls.count(what, in_time(what, answer)).await?;
        Ok(answer.is_some_and(|it| it.ttl > 0))
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Failure> {
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        let request = LeaseRequest { id };
        let _: LeaseRevokeResponse = self.call("give the lease back", path, request).await?;
        Ok(())
    }

    /// Watches the fabric's keys from this revision on. etcd ends the watch when it has no leader.
    pub(crate) async fn watch(
        &self,
        keys: &Keys,
        start_revision: i64,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let what = "watch";
        let (key, range_end) = keys.range();
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision,
            fragment: true,
        };
        let request = WatchRequest {
            create: Some(create),
        };
        // The stream of requests stays open as long as the watch.
        let requests = once(request).chain(pending());
        let opened = self.stream("/etcdserverpb.Watch/Watch", requests);
        self.calls.count(what, in_time(what, opened)).await
    }

    async fn call<Q, A>(&self, what: &'static str, path: &'static str, ask: Q) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        let answer = async {
            grpc.ready().await.map_err(unready)?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(with_leader(ask), PathAndQuery::from_static(path), codec)
                .await
        };
        let answer = self.calls.count(what, in_time(what, answer)).await?;
        Ok(answer.into_inner())
    }

    async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(unready)?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = grpc.streaming(with_leader(requests), path, codec).await?;
        Ok(answer.into_inner())
    }
}

async fn in_time<T>(
    what: &'static str,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    let answer = timeout(DEADLINE, answer).await;
    let answer = answer.map_err(|_late| Failure::Silent { what })?;
    answer.map_err(|status| Failure::of(what, &status))
}

/// Why a watch has ended.
pub(super) fn watch_failure(status: &Status) -> Failure {
    Failure::of("watch", status)
}

fn unready(error: tonic::transport::Error) -> Status {
    Status::unavailable(chain(&error.to_string(), error.source()))
}

/// etcd answers this only while it has a leader.
fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let is_needed = MetadataValue::from_static("true");
    request.metadata_mut().insert("hasleader", is_needed);
    request
}
