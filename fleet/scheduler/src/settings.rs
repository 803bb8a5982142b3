//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{Args, Parser};
use fabricbios_log::LogFormat;
use fabricbios_placement::Policy;

/// Tells clients which node may grant a lease. It holds no lease and no key of one: nodes go on without it, and clients
/// can ask a node itself.
#[derive(Debug, Parser)]
#[command(name = "fabricbios-scheduler", version = env!("FABRICBIOS_VERSION"))]
pub struct Cli {
    /// The scheduler's own.
    #[command(flatten)]
    pub settings: Settings,
    /// Those of etcd.
    #[command(flatten)]
    pub etcd: EtcdSettings,
    /// How lines of the log are written. `text`: fields as name=value; `json`: one object a line.
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// What a scheduler is started with.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// The scheduler's identity: scheduler.identity of `fabricctl fabric init`, or what `fabricctl fabric sign --role
    /// scheduler` has answered
    #[arg(long, value_name = "FILE", env = "FABRICBIOS_SCHEDULER_IDENTITY")]
    pub identity: PathBuf,
    /// Where nodes and clients connect (QUIC over UDP)
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:5704")]
    pub listen: SocketAddr,
    /// Where /metrics, /healthz, /readyz and a page for people are answered over HTTP, without TLS and without authentication
    /// unless there is --http-identity: whoever reaches it learns how many nodes report, what they have together and what the
    /// scheduler lacks, but no tenant and no lease [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// With it the port of --http-listen speaks HTTPS only, and only with clients that have a certificate of the CA in the file:
    /// one PEM file of mode 0600 with the port's certificate and its chain, its key, and last the certificate of the CA of the
    /// clients. It is read at the start: restart the scheduler when the file has changed [default: HTTP without TLS]
    #[arg(long, value_name = "FILE", requires = "http_listen")]
    pub http_identity: Option<PathBuf>,
    /// A directory, there already, for the file page.url of mode 0600 if there is --http-listen: the address at which the page
    /// shows nodes by id too. `fabricctl page --state-dir DIR` prints it [default: the page shows nobody more than totals]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Which of the nodes that have room comes first: spread (the one with the largest free share), binpack (the smallest),
    /// or cache-aware (one that has leases of the caller, then as spread). A policy in etcd, for all schedulers, comes before it
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: Policy,
    /// An interface on whose link this scheduler announces itself, so that nodes and `fabricctl discover` find it (UDP
    /// 5705, multicast); may repeat [default: none]
    #[arg(long, value_name = "IFACE")]
    pub announce: Vec<String>,
}

/// Where it is kept who belongs to the fabric. By default nowhere: a scheduler then knows only the nodes that report.
#[derive(Clone, Debug, Default, Args)]
pub struct EtcdSettings {
    /// etcd, which keeps who belongs to the fabric: its servers as https://HOST:PORT, separated by commas, or
    /// `embedded-dev`: an etcd of this scheduler's own on loopback, whose data ends with it
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// The identity for etcd, one PEM file of mode 0600: a certificate, its key, and last the certificate of etcd's CA
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_identity: Option<PathBuf>,
    /// How long nothing is refused for good after the first look into etcd, and after one that finds it wiped or restored. Other
    /// schedulers try etcd again within 15 s and fill it with one write after the other, and nodes come to this one within 10 s
    /// [30 s; tests wait for less]
    #[arg(skip)]
    pub settles_after: Option<Duration>,
}

/// See [`EtcdSettings::settles_after`].
pub(crate) const SETTLES_AFTER: Duration = Duration::from_secs(30);

/// Which etcd.
#[derive(Debug)]
pub(crate) enum Etcd {
    None,
    At {
        urls: Vec<String>,
        identity: PathBuf,
    },
    Embedded,
}

impl EtcdSettings {
    pub(crate) fn read(&self) -> anyhow::Result<Etcd> {
        const EMBEDDED: &str = "embedded-dev";
        let is_embedded = self.etcd.iter().any(|it| it == EMBEDDED);
        match (&self.etcd[..], &self.etcd_identity) {
            ([], _) => Ok(Etcd::None),
            ([_], None) if is_embedded => Ok(Etcd::Embedded),
            _ if is_embedded => {
                bail!(
                    "--etcd {EMBEDDED} starts an etcd with an identity of its own: give neither a URL nor --etcd-identity"
                )
            }
            (urls, Some(identity)) => Ok(Etcd::At {
                urls: urls.to_vec(),
                identity: identity.clone(),
            }),
            (_, None) => bail!("--etcd needs --etcd-identity FILE"),
        }
    }
}
