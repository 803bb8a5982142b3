//! etcd for comparison: leases are granted, used and revoked over its own protocol (gRPC over HTTP/2; the
//! messages are those of etcd's api/etcdserverpb/rpc.proto).

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

use crate::{daemon::Running, place::free_address};

/// How many times a start is checked, every 20 ms, before it counts as failed.
const LOOKS: u32 = 500;

/// A running etcd process and a connection to it.
#[derive(Debug)]
pub(crate) struct Etcd {
    pub(crate) running: Running,
    connection: SendRequest<Bytes>,
    authority: String,
}

impl Etcd {
    /// Why figures against etcd are missing.
    pub(crate) const ABSENT: &str = "no program `etcd` is in the path; on Debian: apt install etcd-server (its service may be \
                                     off: this bench starts an etcd of its own)";

    /// Name and version, as `etcd --version` says them first; `None` if etcd is not installed.
    pub(crate) fn version() -> Option<String> {
        let asked = Command::new("etcd").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        let (_, version) = text.lines().next()?.rsplit_once(' ')?;
        Some(format!("etcd {version}"))
    }

    /// Starts etcd with its data in `place`, as its page on tuning says (etcd.io/docs/v3.4/tuning): the highest best-effort
    /// priority on the disk. The rest of the page is for members far from each other, and for logs that grow too large;
    /// of one member here it keeps the defaults, and it has no history to compact in the seconds that it runs.
    pub(crate) async fn start(place: &Path) -> anyhow::Result<Self> {
        let [clients, peers] = [free_address()?, free_address()?];
        let mut command = Command::new("ionice");
        command.args(["-c2", "-n0", "etcd"]);
        command.arg("--data-dir").arg(place.join("etcd"));
        for (flag, address) in [("client", clients), ("peer", peers)] {
            command.arg(format!("--listen-{flag}-urls=http://{address}"));
        }
        command.arg(format!("--advertise-client-urls=http://{clients}"));
        command.arg(format!("--initial-advertise-peer-urls=http://{peers}"));
        command.arg(format!("--initial-cluster=default=http://{peers}"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::start(&mut command)?;
        let authority = clients.to_string();
        for _ in 0..LOOKS {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if let Ok(stream) = TcpStream::connect(clients).await {
                stream.set_nodelay(true)?;
                let (connection, driving) = h2::client::handshake(stream).await?;
                tokio::spawn(driving);
                let etcd = Self {
                    running,
                    connection,
                    authority,
                };
                // etcd listens before it has elected itself, and answers only after that.
                etcd.lease(i64::MAX).await?;
                return Ok(etcd);
            }
        }
        bail!("etcd does not listen at {clients}")
    }

    /// Grants the lease of this id, puts a key under it, and revokes it.
    pub(crate) async fn lease(&self, id: i64) -> anyhow::Result<()> {
        // LeaseGrantRequest { TTL = 1, ID = 2 }
        let grant = [&[0x08, 60, 0x10], varint(id).as_slice()].concat();
        self.call("Lease/LeaseGrant", &grant).await?;
        // PutRequest { key = 1, value = 2, lease = 3 }
        let key = id.to_be_bytes();
        let put = [&[0x0A, 8], &key[..], &[0x12, 8], &key, &[0x18], &varint(id)].concat();
        self.call("KV/Put", &put).await?;
        // LeaseRevokeRequest { ID = 1 }
        let revoke = [&[0x08], varint(id).as_slice()].concat();
        self.call("Lease/LeaseRevoke", &revoke).await
    }

    /// Puts a key: one transaction.
    pub(crate) async fn put(&self, number: u64) -> anyhow::Result<()> {
        let key = number.to_be_bytes();
        let put = [&[0x0A, 8], &key[..], &[0x12, 8], &key].concat();
        self.call("KV/Put", &put).await
    }

    async fn call(&self, method: &str, message: &[u8]) -> anyhow::Result<()> {
        let uri = format!("http://{}/etcdserverpb.{method}", self.authority);
        let request = Request::post(uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut framed = BytesMut::with_capacity(5 + message.len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len())?);
        framed.put_slice(message);
        let mut connection = self.connection.clone().ready().await?;
        let (response, mut stream) = connection.send_request(request, false)?;
        stream.send_data(framed.freeze(), true)?;
        let response = response.await?;
        let is_refused = |headers: &HeaderMap| {
            let status = headers.get("grpc-status");
            status.is_some_and(|status| status != "0")
        };
        ensure!(!is_refused(response.headers()), "{method}: {response:?}");
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let length = data?.len();
            body.flow_control().release_capacity(length)?;
        }
        let trailers = body.trailers().await?;
        let trailers = trailers.with_context(|| format!("{method}: no answer"))?;
        ensure!(!is_refused(&trailers), "{method}: {trailers:?}");
        Ok(())
    }
}

/// A number as protobuf encodes it: seven bits per byte, the lowest first; the top bit means that more bytes follow.
fn varint(number: i64) -> Vec<u8> {
    let [low, ..] = number.to_le_bytes();
    match number.cast_unsigned() >> 7 {
        0 => vec![low],
        rest => [vec![low | 0x80], varint(rest.cast_signed())].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the example in the documentation of the encoding, and the extremes.
    #[test]
    fn numbers_are_as_protobuf_has_them() {
        assert_eq!(varint(150), [0x96, 0x01]);
        assert_eq!(varint(0), [0]);
        assert_eq!(varint(i64::MAX), [[0xFF; 8].as_slice(), &[0x7F]].concat());
    }
}
